//! The stack machine, without a way to call anything.

use super::{Call, Limits, Node, Origin, Pickle, Value};
use crate::Error;

/// Instruction bytes, under the names of Python's `pickletools`.
mod op {
    pub(super) const MARK: u8 = b'(';
    pub(super) const STOP: u8 = b'.';
    pub(super) const POP: u8 = b'0';
    pub(super) const POP_MARK: u8 = b'1';
    pub(super) const BINFLOAT: u8 = b'G';
    pub(super) const BININT: u8 = b'J';
    pub(super) const BININT1: u8 = b'K';
    pub(super) const BININT2: u8 = b'M';
    pub(super) const NONE: u8 = b'N';
    pub(super) const BINPERSID: u8 = b'Q';
    pub(super) const REDUCE: u8 = b'R';
    pub(super) const BINSTRING: u8 = b'T';
    pub(super) const SHORT_BINSTRING: u8 = b'U';
    pub(super) const BINUNICODE: u8 = b'X';
    pub(super) const APPEND: u8 = b'a';
    pub(super) const BUILD: u8 = b'b';
    pub(super) const GLOBAL: u8 = b'c';
    pub(super) const APPENDS: u8 = b'e';
    pub(super) const BINGET: u8 = b'h';
    pub(super) const LONG_BINGET: u8 = b'j';
    pub(super) const BINPUT: u8 = b'q';
    pub(super) const LONG_BINPUT: u8 = b'r';
    pub(super) const SETITEM: u8 = b's';
    pub(super) const TUPLE: u8 = b't';
    pub(super) const SETITEMS: u8 = b'u';
    pub(super) const EMPTY_LIST: u8 = b']';
    pub(super) const EMPTY_DICT: u8 = b'}';
    pub(super) const EMPTY_TUPLE: u8 = b')';
    pub(super) const PROTO: u8 = 0x80;
    pub(super) const NEWOBJ: u8 = 0x81;
    pub(super) const TUPLE1: u8 = 0x85;
    pub(super) const TUPLE2: u8 = 0x86;
    pub(super) const TUPLE3: u8 = 0x87;
    pub(super) const NEWTRUE: u8 = 0x88;
    pub(super) const NEWFALSE: u8 = 0x89;
    pub(super) const LONG1: u8 = 0x8a;
    pub(super) const LONG4: u8 = 0x8b;
    pub(super) const SHORT_BINUNICODE: u8 = 0x8c;
    pub(super) const BINUNICODE8: u8 = 0x8d;
    pub(super) const BINBYTES8: u8 = 0x8e;
    pub(super) const EMPTY_SET: u8 = 0x8f;
    pub(super) const ADDITEMS: u8 = 0x90;
    pub(super) const FROZENSET: u8 = 0x91;
    pub(super) const NEWOBJ_EX: u8 = 0x92;
    pub(super) const STACK_GLOBAL: u8 = 0x93;
    pub(super) const MEMOIZE: u8 = 0x94;
    pub(super) const FRAME: u8 = 0x95;
    pub(super) const BYTEARRAY8: u8 = 0x96;
    pub(super) const BINBYTES: u8 = b'B';
    pub(super) const SHORT_BINBYTES: u8 = b'C';
}

/// Protocols of Python 2.3 to 3.14 at least.
const NEWEST_PROTOCOL: u8 = 5;

pub(super) fn read<'a>(
    bytes: &'a [u8],
    limits: Limits,
    origin: &Origin,
) -> Result<Pickle<'a>, Error> {
    if bytes.len() as u64 > limits.bytes {
        return Err(Error::PickleLimit {
            what: "bytes",
            limit: limits.bytes,
            location: origin.location.clone(),
        });
    }
    let mut machine = Machine {
        bytes,
        position: 0,
        started: 0,
        limits,
        origin,
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        memoized: 0,
    };
    let root = machine.run()?;
    Ok(Pickle {
        nodes: machine.nodes,
        root,
    })
}

struct Machine<'a, 'o> {
    bytes: &'a [u8],
    position: usize,
    /// Where the current instruction began.
    started: usize,
    limits: Limits,
    origin: &'o Origin,
    nodes: Vec<Node<'a>>,
    stack: Vec<Value<'a>>,
    /// Stack heights at which a `MARK` was set.
    marks: Vec<usize>,
    memo: Vec<Option<Value<'a>>>,
    /// How many memo entries `MEMOIZE` numbers the next one after.
    memoized: usize,
}

impl<'a> Machine<'a, '_> {
    fn run(&mut self) -> Result<Value<'a>, Error> {
        loop {
            self.started = self.position;
            let opcode = self.byte()?;
            if opcode == op::STOP {
                return self.finish();
            }
            self.step(opcode)?;
        }
    }

    fn finish(&mut self) -> Result<Value<'a>, Error> {
        let root = self.pop()?;
        if !self.stack.is_empty() || !self.marks.is_empty() {
            return Err(self.malformed("values are left over at its end"));
        }
        if self.position != self.bytes.len() {
            return Err(self.malformed("bytes follow its end"));
        }
        Ok(root)
    }

    fn step(&mut self, opcode: u8) -> Result<(), Error> {
        match opcode {
            op::PROTO => {
                if self.byte()? > NEWEST_PROTOCOL {
                    return Err(self.malformed("its protocol is newer than 5"));
                }
                Ok(())
            }
            op::FRAME => {
                // A frame is a reading hint; that it fits is all that matters here.
                let len = self.u64()?;
                if len > (self.bytes.len() - self.position) as u64 {
                    return Err(self.truncated());
                }
                Ok(())
            }
            op::MARK => {
                if self.marks.len() as u64 >= self.limits.marks {
                    return Err(self.limit("nested containers", self.limits.marks));
                }
                self.marks.push(self.stack.len());
                Ok(())
            }
            op::POP => self.pop_one(),
            op::POP_MARK => self.take_marked().map(drop),

            op::NONE => self.push(Value::None),
            op::NEWTRUE => self.push(Value::Bool(true)),
            op::NEWFALSE => self.push(Value::Bool(false)),
            op::BININT1 => {
                let value = i64::from(self.byte()?);
                self.push(Value::Int(value))
            }
            op::BININT2 => {
                let value = i64::from(u16::from_le_bytes(self.array()?));
                self.push(Value::Int(value))
            }
            op::BININT => {
                let value = i64::from(i32::from_le_bytes(self.array()?));
                self.push(Value::Int(value))
            }
            op::LONG1 => {
                let len = u64::from(self.byte()?);
                self.long(len)
            }
            op::LONG4 => {
                // Signed in the format; a negative length reads as more than any pickle holds.
                let len = u64::from(self.u32()?);
                self.long(len)
            }
            op::BINFLOAT => {
                let value = f64::from_be_bytes(self.array()?);
                self.push(Value::Float(value))
            }

            op::SHORT_BINUNICODE => {
                let len = u64::from(self.byte()?);
                self.text(len)
            }
            op::BINUNICODE => {
                let len = u64::from(self.u32()?);
                self.text(len)
            }
            op::BINUNICODE8 => {
                let len = self.u64()?;
                self.text(len)
            }
            op::SHORT_BINSTRING => {
                let len = u64::from(self.byte()?);
                self.byte_text(len)
            }
            op::BINSTRING => {
                let len = u64::from(self.u32()?);
                self.byte_text(len)
            }
            op::SHORT_BINBYTES => {
                let len = u64::from(self.byte()?);
                self.raw(len)
            }
            op::BINBYTES => {
                let len = u64::from(self.u32()?);
                self.raw(len)
            }
            op::BINBYTES8 | op::BYTEARRAY8 => {
                let len = self.u64()?;
                self.raw(len)
            }

            op::EMPTY_TUPLE => self.push_node(Node::Tuple(Vec::new())),
            op::EMPTY_LIST => self.push_node(Node::List(Vec::new())),
            op::EMPTY_DICT => self.push_node(Node::Dict(Vec::new())),
            op::EMPTY_SET => self.push_node(Node::Set(Vec::new())),
            op::TUPLE1 => self.short_tuple(1),
            op::TUPLE2 => self.short_tuple(2),
            op::TUPLE3 => self.short_tuple(3),
            op::TUPLE => {
                let elements = self.take_marked()?;
                self.push_node(Node::Tuple(elements))
            }
            op::FROZENSET => {
                let elements = self.take_marked()?;
                self.push_node(Node::Set(elements))
            }
            op::APPEND => {
                let element = self.pop()?;
                self.extend(vec![element])
            }
            op::APPENDS => {
                let elements = self.take_marked()?;
                self.extend(elements)
            }
            op::ADDITEMS => self.add_items(),
            op::SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set_items(&[key, value])
            }
            op::SETITEMS => {
                let items = self.take_marked()?;
                self.set_items(&items)
            }

            op::GLOBAL => {
                let module = self.line()?;
                let name = self.line()?;
                self.push_node(Node::Global { module, name })
            }
            op::STACK_GLOBAL => {
                let name = self.pop()?;
                let module = self.pop()?;
                let (Value::Str(module), Value::Str(name)) = (module, name) else {
                    return Err(self.malformed("a name to import is not text"));
                };
                self.push_node(Node::Global { module, name })
            }
            op::REDUCE | op::NEWOBJ => self.call(false),
            op::NEWOBJ_EX => self.call(true),
            op::BUILD => self.build(),
            op::BINPERSID => {
                let id = self.pop()?;
                self.push_node(Node::PersistentId(id))
            }

            op::BINPUT => {
                let index = usize::from(self.byte()?);
                self.put(index)
            }
            op::LONG_BINPUT => {
                let index = self.u32()? as usize;
                self.put(index)
            }
            op::MEMOIZE => self.put(self.memoized),
            op::BINGET => {
                let index = usize::from(self.byte()?);
                self.get(index)
            }
            op::LONG_BINGET => {
                let index = self.u32()? as usize;
                self.get(index)
            }
            _ => Err(Error::PickleOpcode {
                opcode,
                location: self.origin.at(self.started),
            }),
        }
    }

    // --- bytes ---

    fn take(&mut self, len: u64) -> Result<&'a [u8], Error> {
        let rest = &self.bytes[self.position..];
        let Some(taken) = usize::try_from(len).ok().and_then(|len| rest.get(..len)) else {
            return Err(self.truncated());
        };
        self.position += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let bytes = self.take(N as u64)?;
        Ok(bytes.try_into().expect("take returns as many as asked for"))
    }

    fn byte(&mut self) -> Result<u8, Error> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    /// Text up to a newline.
    fn line(&mut self) -> Result<&'a str, Error> {
        let rest = &self.bytes[self.position..];
        let Some(len) = rest.iter().position(|&byte| byte == b'\n') else {
            return Err(self.truncated());
        };
        self.position += len + 1;
        std::str::from_utf8(&rest[..len]).map_err(|_| self.malformed("a name is not UTF-8"))
    }

    // --- leaves ---

    fn long(&mut self, len: u64) -> Result<(), Error> {
        let bytes = self.take(len)?;
        let Some(&last) = bytes.last() else {
            return self.push(Value::Int(0));
        };
        if bytes.len() > 8 {
            return self.push(Value::BigInt(bytes));
        }
        let mut extended = [if last & 0x80 == 0 { 0 } else { 0xff }; 8];
        extended[..bytes.len()].copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(extended)))
    }

    fn text(&mut self, len: u64) -> Result<(), Error> {
        let bytes = self.take(len)?;
        let text = std::str::from_utf8(bytes).map_err(|_| self.malformed("text is not UTF-8"))?;
        self.push(Value::Str(text))
    }

    /// A string of Python 2, which is text if it can be.
    fn byte_text(&mut self, len: u64) -> Result<(), Error> {
        let bytes = self.take(len)?;
        self.push(std::str::from_utf8(bytes).map_or(Value::Bytes(bytes), Value::Str))
    }

    fn raw(&mut self, len: u64) -> Result<(), Error> {
        let bytes = self.take(len)?;
        self.push(Value::Bytes(bytes))
    }

    // --- stack and memo ---

    fn push(&mut self, value: Value<'a>) -> Result<(), Error> {
        if self.stack.len() as u64 >= self.limits.stack {
            return Err(self.limit("values on the stack", self.limits.stack));
        }
        self.stack.push(value);
        Ok(())
    }

    fn push_node(&mut self, node: Node<'a>) -> Result<(), Error> {
        if self.nodes.len() as u64 >= self.limits.nodes {
            return Err(self.limit("nodes", self.limits.nodes));
        }
        let index = u32::try_from(self.nodes.len())
            .map_err(|_| self.limit("nodes", u64::from(u32::MAX)))?;
        self.nodes.push(node);
        self.push(Value::Node(index))
    }

    /// The lowest stack height that may be popped to: values below the last mark belong to an outer container.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Value<'a>, Error> {
        if self.stack.len() <= self.floor() {
            return Err(self.malformed("the stack is empty"));
        }
        Ok(self.stack.pop().expect("longer than its floor"))
    }

    /// `POP` takes a mark if nothing lies above it.
    fn pop_one(&mut self) -> Result<(), Error> {
        if self.stack.len() <= self.floor() && self.marks.pop().is_some() {
            return Ok(());
        }
        self.pop().map(drop)
    }

    fn top(&self) -> Result<Value<'a>, Error> {
        match self.stack.last() {
            Some(&value) if self.stack.len() > self.floor() => Ok(value),
            _ => Err(self.malformed("the stack is empty")),
        }
    }

    fn take_marked(&mut self) -> Result<Vec<Value<'a>>, Error> {
        let Some(height) = self.marks.pop() else {
            return Err(self.malformed("a mark is missing"));
        };
        Ok(self.stack.split_off(height))
    }

    fn put(&mut self, index: usize) -> Result<(), Error> {
        // Every entry costs its pickle a byte at least, so an index beyond the bytes was never reached by counting. An
        // entry takes nearly the memory of a node, and has the same limit.
        let limit = self.limits.nodes.min(self.bytes.len() as u64);
        if index as u64 >= limit {
            return Err(self.limit("memo entries", limit));
        }
        let value = self.top()?;
        if index >= self.memo.len() {
            self.memo.resize(index + 1, None);
        }
        if self.memo[index].is_none() {
            self.memoized += 1;
        }
        self.memo[index] = Some(value);
        Ok(())
    }

    fn get(&mut self, index: usize) -> Result<(), Error> {
        let Some(value) = self.memo.get(index).copied().flatten() else {
            return Err(self.malformed("a memo entry is used before it is set"));
        };
        self.push(value)
    }

    // --- containers and calls ---

    fn short_tuple(&mut self, len: usize) -> Result<(), Error> {
        let start = self.stack.len().checked_sub(len);
        let Some(start) = start.filter(|&start| start >= self.floor()) else {
            return Err(self.malformed("the stack is empty"));
        };
        let elements = self.stack.split_off(start);
        self.push_node(Node::Tuple(elements))
    }

    fn top_node(&mut self) -> Result<&mut Node<'a>, Error> {
        match self.top()? {
            Value::Node(index) => Ok(&mut self.nodes[index as usize]),
            _ => Err(self.malformed("a leaf is used as a container")),
        }
    }

    fn extend(&mut self, elements: Vec<Value<'a>>) -> Result<(), Error> {
        match self.top_node()? {
            Node::List(list) => list.extend(elements),
            Node::Call(call) => call.elements.extend(elements),
            _ => return Err(self.malformed("elements are appended to something that is no list")),
        }
        Ok(())
    }

    fn add_items(&mut self) -> Result<(), Error> {
        let elements = self.take_marked()?;
        match self.top_node()? {
            Node::Set(set) => set.extend(elements),
            _ => return Err(self.malformed("elements are added to something that is no set")),
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[Value<'a>]) -> Result<(), Error> {
        let (pairs, []) = items.as_chunks::<2>() else {
            return Err(self.malformed("a key has no value"));
        };
        let pairs = pairs.iter().map(|&[key, value]| (key, value));
        match self.top_node()? {
            Node::Dict(entries) => entries.extend(pairs),
            Node::Call(call) => call.entries.extend(pairs),
            _ => return Err(self.malformed("items are set in something that is no dict")),
        }
        Ok(())
    }

    fn call(&mut self, has_kwargs: bool) -> Result<(), Error> {
        if has_kwargs {
            // No class that is understood takes keyword arguments.
            self.pop()?;
        }
        let args = self.pop()?;
        let callable = self.pop()?;
        let is_tuple = matches!(args, Value::Node(index) if matches!(self.nodes[index as usize], Node::Tuple(_)));
        if !is_tuple {
            return Err(self.malformed("the arguments of a call are no tuple"));
        }
        self.push_node(Node::Call(Box::new(Call {
            callable,
            args,
            state: None,
            elements: Vec::new(),
            entries: Vec::new(),
        })))
    }

    fn build(&mut self) -> Result<(), Error> {
        let state = self.pop()?;
        match self.top_node()? {
            Node::Call(call) if call.state.is_none() => call.state = Some(state),
            Node::Call(_) => return Err(self.malformed("an object is given its state twice")),
            _ => return Err(self.malformed("state is given to something that is no object")),
        }
        Ok(())
    }

    // --- errors ---

    fn malformed(&self, what: &'static str) -> Error {
        Error::PickleMalformed {
            what,
            location: self.origin.at(self.started),
        }
    }

    fn truncated(&self) -> Error {
        Error::PickleTruncated {
            location: self.origin.at(self.started),
        }
    }

    fn limit(&self, what: &'static str, limit: u64) -> Error {
        Error::PickleLimit {
            what,
            limit,
            location: self.origin.at(self.started),
        }
    }
}
