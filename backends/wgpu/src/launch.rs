//! A dispatch that is being put together.

use std::ops::Range;
use std::sync::Arc;

use rialto_backend::Error;

use crate::NAME;
use crate::replay::{Groups, Step};
use crate::shader::{BASES, E4M3, KIND, PARAMS, SPAN};
use crate::shared::Shared;
use crate::storage::{Memory, Unit};

/// Elements of a workgroup where each invocation has one.
pub(crate) const GROUP: u64 = 64;

/// A binding: elements of a memory, and what the shader counts.
struct Binding {
    memory: Arc<Memory>,
    elements: Range<u64>,
    unit: Unit,
}

/// A dispatch that is being put together.
pub(crate) struct Launch {
    shader: &'static str,
    constants: Vec<(String, u32)>,
    params: Vec<u32>,
    span: [u32; 4],
    /// By number of binding, from 1.
    bindings: Vec<Binding>,
    groups: u64,
    indirect: Option<(Arc<Memory>, u64)>,
    work: u64,
    loops: u64,
}

impl Launch {
    /// A shader with so many workgroups and so much work.
    pub(crate) fn new(shader: &'static str, groups: u64, work: u64) -> Launch {
        Launch {
            shader,
            constants: Vec::new(),
            params: Vec::new(),
            span: [0; 4],
            bindings: Vec::new(),
            groups,
            indirect: None,
            work,
            loops: 0,
        }
    }

    /// A shader whose workgroups have a unit each.
    pub(crate) fn units(shader: &'static str, part: &Range<u64>, work: u64) -> Launch {
        let units = part.end - part.start;
        Launch::new(shader, units, units * work).span(part)
    }

    /// A shader whose invocations have a unit each.
    pub(crate) fn elements(shader: &'static str, part: &Range<u64>, work: u64) -> Launch {
        let units = part.end - part.start;
        Launch::new(shader, groups_of(part), units * work).span(part)
    }

    /// How often an invocation goes round loops at most. What is not said is a few times, whatever it is given.
    pub(crate) fn loops(mut self, times: u64) -> Launch {
        self.loops = times;
        self
    }

    /// Which units it has.
    pub(crate) fn span(mut self, part: &Range<u64>) -> Launch {
        self.span[0] = part.start as u32;
        self.span[1] = part.end as u32;
        self
    }

    /// Which of another axis.
    pub(crate) fn across(mut self, part: &Range<u64>) -> Launch {
        self.span[2] = part.start as u32;
        self.span[3] = part.end as u32;
        self
    }

    /// The sizes, in order.
    pub(crate) fn params(mut self, params: impl IntoIterator<Item = u64>) -> Launch {
        // Sizes of what a device holds: memory has fewer than 2^32 elements.
        self.params
            .extend(params.into_iter().map(|value| value as u32));
        self
    }

    /// Sizes from a vector of four on, behind those before it.
    pub(crate) fn params_at(
        mut self,
        vector: usize,
        params: impl IntoIterator<Item = u64>,
    ) -> Launch {
        self.params.resize(4 * vector, 0);
        self.params(params)
    }

    /// Floats that the shader calls `name`.
    pub(crate) fn floats(mut self, name: &str, floats: &Floats, elements: Range<u64>) -> Launch {
        self.constants.push((format!("{name}_{KIND}"), floats.kind));
        self.bind(&floats.memory, elements, Unit::Elements)
    }

    /// All floats that the shader calls `name`.
    pub(crate) fn all(self, name: &str, floats: &Floats) -> Launch {
        self.floats(name, floats, 0..floats.memory.elements())
    }

    /// Rows of matrices that the shader calls `name`: two bindings.
    pub(crate) fn weight(mut self, name: &str, weight: &Weight, rows: &Range<u64>) -> Launch {
        self.constants.push((format!("{name}_{KIND}"), weight.kind));
        let [_, columns, ..] = weight.sizes();
        let values = rows.start * columns..rows.end * columns;
        match &weight.scales {
            Some(scales) => {
                let of_rows = weight.scales_of(rows);
                self.bind(&weight.codes, values, Unit::Elements).bind(
                    scales,
                    of_rows,
                    Unit::Elements,
                )
            }
            // Bound, and not read.
            None => self
                .bind(&weight.codes, values.clone(), Unit::Elements)
                .bind(&weight.codes, values, Unit::Elements),
        }
    }

    /// A constant of the shader.
    pub(crate) fn constant(mut self, name: &str, value: u32) -> Launch {
        self.constants.push((name.to_owned(), value));
        self
    }

    /// Elements that the shader sees as words.
    pub(crate) fn words(self, memory: &Arc<Memory>, elements: Range<u64>) -> Launch {
        self.bind(memory, elements, Unit::Words)
    }

    /// Elements that the shader decodes itself.
    pub(crate) fn elements_of(self, memory: &Arc<Memory>, elements: Range<u64>) -> Launch {
        self.bind(memory, elements, Unit::Elements)
    }

    /// All of a memory, seen as words.
    pub(crate) fn whole(self, memory: &Arc<Memory>) -> Launch {
        let elements = memory.elements();
        self.words(memory, 0..elements)
    }

    /// The numbers of workgroups are three words of a memory, from a word on.
    pub(crate) fn indirect(mut self, memory: &Arc<Memory>, word: u64) -> Launch {
        self.indirect = Some((Arc::clone(memory), word));
        self
    }

    fn bind(mut self, memory: &Arc<Memory>, elements: Range<u64>, unit: Unit) -> Launch {
        self.bindings.push(Binding {
            memory: Arc::clone(memory),
            elements,
            unit,
        });
        self
    }

    /// The same with its bindings found. `None` if it has no workgroup. Errors: [`Error::BufferSize`] for what cannot be bound,
    /// [`Error::UnsupportedElement`] for rows that are too long.
    pub(crate) fn into_step(self, shared: &Shared) -> Result<Option<Step>, Error> {
        if self.groups == 0 {
            return Ok(None);
        }
        let most = shared.limits.loops;
        if self.loops > most {
            return Err(Error::UnsupportedElement {
                backend: NAME.to_owned(),
                what: format!(
                    "rows of this length: {} would go round loops {} times, {most} are sure on {}",
                    self.shader, self.loops, shared.name
                ),
            });
        }
        let mut params = self.params;
        assert!(params.len() <= 4 * BASES, "{}: params", self.shader);
        params.resize(4 * PARAMS, 0);
        params[4 * SPAN..].copy_from_slice(&self.span);
        let mut bindings = Vec::with_capacity(self.bindings.len());
        for (number, binding) in (1..).zip(&self.bindings) {
            let bound = binding.memory.bind(&binding.elements, binding.unit)?;
            params[4 * BASES + number] = bound.base;
            bindings.push((Arc::clone(bound.buffer), bound.offset, bound.size));
        }
        let groups = match self.indirect {
            None => Groups::Are(self.groups),
            Some((memory, word)) => {
                let bound = memory.bind(&(0..memory.elements()), Unit::Words)?;
                Groups::At(Arc::clone(bound.buffer), 4 * word)
            }
        };
        Ok(Some(Step {
            shader: self.shader,
            pipeline: shared.pipeline(self.shader, &self.constants),
            params,
            bindings,
            groups,
            work: self.work,
        }))
    }
}

/// F32 or BF16 elements.
#[derive(Clone)]
pub(crate) struct Floats {
    pub(crate) memory: Arc<Memory>,
    pub(crate) kind: u32,
    /// Extents.
    pub(crate) shape: Vec<u64>,
}

impl Floats {
    /// F32 elements that another dispatch leaves.
    pub(crate) fn scratch(memory: &Arc<Memory>, shape: Vec<u64>) -> Floats {
        Floats {
            memory: Arc::clone(memory),
            kind: 0,
            shape,
        }
    }

    /// Elements of all axes.
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Elements of the last axis.
    pub(crate) fn last(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows of the last axis.
    pub(crate) fn rows(&self) -> u64 {
        self.elements().checked_div(self.last()).unwrap_or_default()
    }
}

/// A matrix `[.., n, k]` in any encoding.
#[derive(Clone)]
pub(crate) struct Weight {
    pub(crate) codes: Arc<Memory>,
    pub(crate) scales: Option<Arc<Memory>>,
    pub(crate) kind: u32,
    pub(crate) block: [u64; 2],
    /// Extents.
    pub(crate) shape: Vec<u64>,
}

impl Weight {
    /// Rows and columns of each matrix, rows and columns of a block: what a shader's `NAME_shape` gives.
    pub(crate) fn sizes(&self) -> [u64; 4] {
        let [.., n, k] = self.shape.as_slice() else {
            unreachable!("a weight has two axes at least");
        };
        // A block larger than the matrix is the matrix.
        let [rows, columns] = self.block;
        [*n, *k, rows.min((*n).max(1)), columns.min((*k).max(1))]
    }

    /// Whether four columns from a multiple of four on are whole words, with one scale.
    pub(crate) fn has_fours(&self) -> bool {
        let [_, k, _, columns] = self.sizes();
        let is_in_blocks = self.kind == E4M3;
        k.is_multiple_of(4) && (!is_in_blocks || columns.is_multiple_of(4))
    }

    /// The scales of rows, which are counted through all matrices.
    fn scales_of(&self, rows: &Range<u64>) -> Range<u64> {
        let [n, k, of_block, columns] = self.sizes();
        let (down, across) = (n.div_ceil(of_block), k.div_ceil(columns));
        let block = |row: u64| row / n.max(1) * down + row % n.max(1) / of_block;
        match rows.is_empty() {
            true => 0..0,
            false => block(rows.start) * across..(block(rows.end - 1) + 1) * across,
        }
    }

    /// Parts of rows, counted through all matrices, in multiples of `unit`, such that a part and its scales can be bound. Errors:
    /// [`Error::BufferSize`] if a unit cannot be.
    pub(crate) fn parts(&self, unit: u64) -> Result<Vec<Range<u64>>, Error> {
        let [n, k, ..] = self.sizes();
        let matrices: u64 = self.shape[..self.shape.len() - 2].iter().product();
        let rows = matrices * n;
        let fits = |rows: &Range<u64>| {
            let codes = self.codes.reach(rows.start * k) >= rows.end * k;
            let scales = self.scales.as_ref().is_none_or(|scales| {
                let of_rows = self.scales_of(rows);
                scales.reach(of_rows.start) >= of_rows.end
            });
            codes && scales
        };
        let mut parts = Vec::new();
        let mut begin = 0;
        while begin < rows && k > 0 {
            let mut end = self.codes.reach(begin * k) / k;
            end = (end / unit * unit).max(begin + unit).min(rows);
            while !fits(&(begin..end)) {
                if end - begin <= unit {
                    return Err(self.codes.too_large());
                }
                // Scales are few: what they take away is little.
                end = begin + ((end - begin) / 2).div_ceil(unit) * unit;
            }
            parts.push(begin..end);
            begin = end;
        }
        if parts.is_empty() {
            parts.push(0..rows);
        }
        Ok(parts)
    }
}

/// Groups of a part where each invocation has a unit.
fn groups_of(part: &Range<u64>) -> u64 {
    (part.end - part.start).div_ceil(GROUP)
}
