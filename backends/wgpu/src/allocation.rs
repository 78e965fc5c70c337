//! Memory of a device, counted: no driver says how much is left.

use std::ops::Deref;

use rialto_backend::Share;

/// A buffer and its share of the budget. A clone of the buffer alone would not count: recordings keep the allocation.
pub(crate) struct Allocation {
    buffer: wgpu::Buffer,
    _share: Share,
}

impl Allocation {
    pub(crate) fn new(buffer: wgpu::Buffer, share: Share) -> Allocation {
        Allocation {
            buffer,
            _share: share,
        }
    }
}

impl Deref for Allocation {
    type Target = wgpu::Buffer;

    fn deref(&self) -> &wgpu::Buffer {
        &self.buffer
    }
}
