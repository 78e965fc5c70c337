//! Pickles as inert data: a reader that executes nothing, and a writer of the few constructs that torch needs.
//!
//! A pickle is a program for a stack machine whose `REDUCE` calls any function that the file names. Here a name stays a
//! name and a call stays a record of what would be called, so the worst that a hostile file can do is to be refused.
//!
//! Values lie in one arena and refer to each other by index. So sharing costs nothing, an object that holds itself is
//! harmless until somebody walks it (walkers carry a depth and a budget), and dropping the deepest nesting is one
//! `Vec`'s drop. Strings borrow from the pickle.

mod read;
mod write;

use rialto_tensor::Location;

pub(crate) use write::PickleWriter;

use crate::Error;

/// Where a pickle lies, so that an error can name the byte in the file.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// The file, and the tensor or object if known.
    pub(crate) location: Location,
    /// The byte in the file at which the pickle begins.
    pub(crate) base: u64,
}

impl Origin {
    /// The place of one byte of the pickle.
    pub(crate) fn at(&self, position: usize) -> Location {
        let byte = self.base.saturating_add(position as u64);
        self.location
            .clone()
            .with_bytes(byte, byte.saturating_add(1))
    }
}

/// The most axes that torch gives a tensor.
pub(crate) const MAX_AXES: usize = 64;

/// More than any class of PyTorch or Megatron has.
const MAX_FIELDS: usize = 256;

/// Bounds of what is accepted; real checkpoints stay far below each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Length of the pickle.
    pub(crate) bytes: u64,
    /// Containers, calls and names made, which also bounds memory: one takes 32 bytes and its elements.
    pub(crate) nodes: u64,
    /// Values waiting on the stack at once.
    pub(crate) stack: u64,
    /// Marks waiting at once: how deep containers nest while they are built.
    pub(crate) marks: u64,
}

impl Limits {
    /// For `.metadata`: 100 000 chunks as Megatron lists them take 30 MB and 5 million nodes.
    pub(crate) const METADATA: Limits = Limits {
        bytes: 512 << 20,
        nodes: 32 << 20,
        stack: 16 << 20,
        marks: 1000,
    };
    /// For the pickle inside one item or one object.
    pub(crate) const ITEM: Limits = Limits {
        bytes: 64 << 20,
        nodes: 4 << 20,
        stack: 4 << 20,
        marks: 1000,
    };
}

/// A value: a leaf, or the index of a [`Node`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(&'a str),
    Bytes(&'a [u8]),
    /// An integer beyond 64 bits, little-endian two's complement.
    BigInt(&'a [u8]),
    Node(u32),
}

impl Value<'_> {
    /// A count or offset: an integer that is not negative.
    pub(crate) fn as_u64(self) -> Option<u64> {
        match self {
            Value::Int(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }
}

impl<'a> Value<'a> {
    pub(crate) fn as_str(self) -> Option<&'a str> {
        match self {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }
}

/// A value that holds others.
#[derive(Clone, Debug)]
pub(crate) enum Node<'a> {
    Tuple(Vec<Value<'a>>),
    List(Vec<Value<'a>>),
    Set(Vec<Value<'a>>),
    Dict(Vec<(Value<'a>, Value<'a>)>),
    /// A name that Python would import.
    Global {
        module: &'a str,
        name: &'a str,
    },
    Call(Box<Call<'a>>),
    /// A reference that the pickle's owner resolves; in torch.save streams, a storage.
    PersistentId(Value<'a>),
}

/// What Python would build by calling a name.
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) callable: Value<'a>,
    pub(crate) args: Value<'a>,
    /// What `__setstate__` would be given.
    pub(crate) state: Option<Value<'a>>,
    /// What `append` or `extend` would be given.
    pub(crate) elements: Vec<Value<'a>>,
    /// What `__setitem__` would be given.
    pub(crate) entries: Vec<(Value<'a>, Value<'a>)>,
}

/// A pickle that was read.
#[derive(Debug)]
pub(crate) struct Pickle<'a> {
    nodes: Vec<Node<'a>>,
    root: Value<'a>,
}

impl<'a> Pickle<'a> {
    /// Reads the one object of a pickle, and refuses bytes after it.
    ///
    /// Errors: the `Pickle…` variants of [`Error`].
    pub(crate) fn read(
        bytes: &'a [u8],
        limits: Limits,
        origin: &Origin,
    ) -> Result<Pickle<'a>, Error> {
        read::read(bytes, limits, origin)
    }

    pub(crate) fn root(&self) -> Value<'a> {
        self.root
    }

    pub(crate) fn node(&self, value: Value<'a>) -> Option<&Node<'a>> {
        match value {
            Value::Node(index) => self.nodes.get(index as usize),
            _ => None,
        }
    }

    pub(crate) fn tuple(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match self.node(value)? {
            Node::Tuple(elements) => Some(elements),
            _ => None,
        }
    }

    pub(crate) fn list(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match self.node(value)? {
            Node::List(elements) => Some(elements),
            _ => None,
        }
    }

    pub(crate) fn dict(&self, value: Value<'a>) -> Option<&[(Value<'a>, Value<'a>)]> {
        match self.node(value)? {
            Node::Dict(entries) => Some(entries),
            _ => None,
        }
    }

    pub(crate) fn call(&self, value: Value<'a>) -> Option<&Call<'a>> {
        match self.node(value)? {
            Node::Call(call) => Some(call),
            _ => None,
        }
    }

    /// Module and name of a global.
    pub(crate) fn global(&self, value: Value<'a>) -> Option<(&'a str, &'a str)> {
        match self.node(value)? {
            Node::Global { module, name } => Some((module, name)),
            _ => None,
        }
    }

    /// A call of exactly this global.
    pub(crate) fn call_of(&self, value: Value<'a>, module: &str, name: &str) -> Option<&Call<'a>> {
        let call = self.call(value)?;
        (self.global(call.callable)? == (module, name)).then_some(call)
    }

    /// The integers of a `torch.Size`, or of the tuple or list that stands for one. `None` for anything else: a negative
    /// or huge integer, or more axes than torch allows a tensor.
    pub(crate) fn extents(&self, value: Value<'a>) -> Option<Vec<u64>> {
        let inner = match self.call_of(value, "torch", "Size") {
            Some(call) => *self.tuple(call.args)?.first()?,
            None => value,
        };
        let values = self.tuple(inner).or_else(|| self.list(inner))?;
        if values.len() > MAX_AXES {
            return None;
        }
        values.iter().map(|value| value.as_u64()).collect()
    }

    /// A field of an object's state, which is a dict; with a key given twice the last wins, as in Python.
    ///
    /// States have a handful of fields. A dict of very many is taken for none, because a hostile file could have it
    /// searched for every chunk.
    pub(crate) fn field(&self, state: Value<'a>, key: &str) -> Option<Value<'a>> {
        self.dict(state)
            .filter(|entries| entries.len() <= MAX_FIELDS)?
            .iter()
            .rev()
            .find(|(found, _)| *found == Value::Str(key))
            .map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests;
