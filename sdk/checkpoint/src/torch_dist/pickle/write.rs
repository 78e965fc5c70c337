//! A protocol 2 emitter: no frames, understood by every Python and by torch's restricted unpickler.

use std::collections::HashMap;

/// Builds one pickle, instruction by instruction; names, shared text and sizes are written once and then referred to.
#[derive(Debug)]
pub(crate) struct PickleWriter {
    bytes: Vec<u8>,
    memo: HashMap<MemoKey, u32>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum MemoKey {
    Global(&'static str, &'static str),
    Text(String),
    Size(Vec<u64>),
    /// A value that the caller knows by a name of its own.
    Named(&'static str),
}

/// Python's pickler hands containers over in batches of this many, which bounds a reader's stack.
const BATCH: usize = 1000;

impl PickleWriter {
    pub(crate) fn new() -> PickleWriter {
        PickleWriter {
            bytes: vec![0x80, 2],
            memo: HashMap::new(),
        }
    }

    /// Ends the pickle: one value must have been written.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }

    pub(crate) fn none(&mut self) {
        self.bytes.push(b'N');
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.bytes.push(if value { 0x88 } else { 0x89 });
    }

    pub(crate) fn int(&mut self, value: i64) {
        if let Ok(byte) = u8::try_from(value) {
            self.bytes.extend([b'K', byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.bytes.push(b'M');
            self.bytes.extend(short.to_le_bytes());
        } else if let Ok(word) = i32::try_from(value) {
            self.bytes.push(b'J');
            self.bytes.extend(word.to_le_bytes());
        } else {
            self.bytes.extend([0x8a, 8]);
            self.bytes.extend(value.to_le_bytes());
        }
    }

    pub(crate) fn uint(&mut self, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.int(value),
            Err(_) => {
                // A ninth byte keeps the sign bit clear.
                self.bytes.extend([0x8a, 9]);
                self.bytes.extend(value.to_le_bytes());
                self.bytes.push(0);
            }
        }
    }

    pub(crate) fn float(&mut self, value: f64) {
        self.bytes.push(b'G');
        self.bytes.extend(value.to_be_bytes());
    }

    /// Text that occurs once.
    pub(crate) fn text(&mut self, text: &str) {
        let len = u32::try_from(text.len())
            .expect("names of tensors, files and keys are shorter than 4 GiB");
        self.bytes.push(b'X');
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    /// Text that occurs again.
    pub(crate) fn shared_text(&mut self, text: &str) {
        if !self.recall(&MemoKey::Text(text.to_owned())) {
            self.text(text);
            self.remember(MemoKey::Text(text.to_owned()));
        }
    }

    pub(crate) fn global(&mut self, module: &'static str, name: &'static str) {
        let key = MemoKey::Global(module, name);
        if !self.recall(&key) {
            self.bytes.push(b'c');
            self.bytes.extend(module.as_bytes());
            self.bytes.push(b'\n');
            self.bytes.extend(name.as_bytes());
            self.bytes.push(b'\n');
            self.remember(key);
        }
    }

    /// A tuple of integers, which is how torch gives sizes and strides to its own functions.
    pub(crate) fn int_tuple(&mut self, values: &[u64]) {
        match values {
            [] => self.empty_tuple(),
            [_] | [_, _] | [_, _, _] => {
                for &value in values {
                    self.uint(value);
                }
                self.bytes.push([0x85, 0x86, 0x87][values.len() - 1]);
            }
            _ => {
                self.mark();
                for &value in values {
                    self.uint(value);
                }
                self.tuple();
            }
        }
    }

    /// A `torch.Size`.
    pub(crate) fn size(&mut self, extents: &[u64]) {
        let key = MemoKey::Size(extents.to_vec());
        if !self.recall(&key) {
            self.global("torch", "Size");
            self.int_tuple(extents);
            self.tuple1();
            self.reduce();
            self.remember(key);
        }
    }

    /// A value that occurs again and that the caller writes the first time.
    pub(crate) fn shared(&mut self, name: &'static str, write: impl FnOnce(&mut PickleWriter)) {
        let key = MemoKey::Named(name);
        if !self.recall(&key) {
            write(self);
            self.remember(key);
        }
    }

    /// An object made without calling its class, to be given its state by [`PickleWriter::build`].
    pub(crate) fn new_object(&mut self, module: &'static str, name: &'static str) {
        self.global(module, name);
        self.empty_tuple();
        self.bytes.push(0x81);
    }

    pub(crate) fn build(&mut self) {
        self.bytes.push(b'b');
    }

    pub(crate) fn mark(&mut self) {
        self.bytes.push(b'(');
    }

    pub(crate) fn tuple(&mut self) {
        self.bytes.push(b't');
    }

    pub(crate) fn tuple1(&mut self) {
        self.bytes.push(0x85);
    }

    pub(crate) fn empty_tuple(&mut self) {
        self.bytes.push(b')');
    }

    pub(crate) fn reduce(&mut self) {
        self.bytes.push(b'R');
    }

    pub(crate) fn persistent_id(&mut self) {
        self.bytes.push(b'Q');
    }

    /// A dict: `write` is called once an item and writes its key and its value.
    pub(crate) fn dict<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        write: impl FnMut(&mut PickleWriter, T),
    ) {
        self.bytes.push(b'}');
        self.batches(items, b'u', write);
    }

    /// A list: `write` is called once an element and writes it.
    pub(crate) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        write: impl FnMut(&mut PickleWriter, T),
    ) {
        self.bytes.push(b']');
        self.batches(items, b'e', write);
    }

    fn batches<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        end: u8,
        mut write: impl FnMut(&mut PickleWriter, T),
    ) {
        let mut open = 0;
        for item in items {
            if open == BATCH {
                self.bytes.push(end);
                open = 0;
            }
            if open == 0 {
                self.mark();
            }
            write(self, item);
            open += 1;
        }
        if open > 0 {
            self.bytes.push(end);
        }
    }

    fn recall(&mut self, key: &MemoKey) -> bool {
        let Some(&index) = self.memo.get(key) else {
            return false;
        };
        match u8::try_from(index) {
            Ok(short) => self.bytes.extend([b'h', short]),
            Err(_) => {
                self.bytes.push(b'j');
                self.bytes.extend(index.to_le_bytes());
            }
        }
        true
    }

    fn remember(&mut self, key: MemoKey) {
        let index = u32::try_from(self.memo.len())
            .expect("a memo entry costs more bytes than a pickle of 4 GiB would have for it");
        match u8::try_from(index) {
            Ok(short) => self.bytes.extend([b'q', short]),
            Err(_) => {
                self.bytes.push(b'r');
                self.bytes.extend(index.to_le_bytes());
            }
        }
        self.memo.insert(key, index);
    }
}
