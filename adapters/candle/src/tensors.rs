//! Tensors of options.

use crate::descales::{Descales, E4m3, LockedDescales, is_descale};
use crate::memory::{Addresses, Locked, Memory};
use crate::prefix::{LockedPrefix, Prefix};
use candle_core::{DType, Device, Result, Tensor};
use ferroattn::{Dtype, Problem, RawBias, RawMask, RawOptions, RawTensor, Sequences};

/// Tensors of options, as their owner shaped them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tensors {
    /// `[heads]`, `[batch, heads]` or, of packed sequences, `[sequences, heads]`.
    pub alibi: Option<Tensor>,
    /// `[batch or 1, heads or 1, seqlen_q or 1, seqlen_kv]`.
    pub bias: Option<Tensor>,
    /// Of a bias's shape.
    pub mask: Option<Tensor>,
    /// `[heads]`.
    pub sinks: Option<Tensor>,
    pub rows: Option<Rows>,
    /// `[batch, most]` or, of packed queries, `[sequences, most]`.
    pub pages: Option<Tensor>,
    /// `[batch]`.
    pub cache_entries: Option<Tensor>,
    pub descales: Option<Descales>,
    pub prefix: Option<Prefix>,
}

/// Which rows of queries and of keys are a sequence.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// Whether queries and keys of sequences lie one after another, and their numbers are offsets; otherwise they are lengths.
    pub packed: [bool; 2],
    /// Numbers of queries and of keys.
    pub numbers: [Tensor; 2],
}

impl Tensors {
    /// Whether queries of sequences lie one after another, and whether keys do.
    pub fn packed(&self) -> [bool; 2] {
        self.rows.as_ref().map_or([false; 2], |rows| rows.packed)
    }

    /// Whether queries of sequences lie one after another.
    pub fn is_packed(&self) -> bool {
        self.packed()[0]
    }

    /// How many entries of keys one entry of q has: of packed queries one for each sequence.
    pub fn key_entries(&self) -> usize {
        match &self.rows {
            Some(rows) if rows.packed == [true, false] => {
                rows.numbers[0].elem_count().saturating_sub(1)
            }
            _ => 1,
        }
    }

    /// Whether k and v have other entries than the batch.
    pub fn has_cache(&self) -> bool {
        self.pages.is_some() || self.cache_entries.is_some()
    }

    /// Whether tensors want gradients beside q, k and v.
    pub fn learn(&self) -> bool {
        let tensors = [&self.bias, &self.sinks];
        tensors.into_iter().flatten().any(Tensor::track_op)
    }

    /// The tensors without their places in the graph.
    pub fn detached(&self) -> Self {
        let detached = |tensor: &Option<Tensor>| tensor.as_ref().map(Tensor::detach);
        Tensors {
            alibi: detached(&self.alibi),
            bias: detached(&self.bias),
            mask: detached(&self.mask),
            sinks: detached(&self.sinks),
            rows: self.rows.clone(),
            pages: self.pages.clone(),
            cache_entries: self.cache_entries.clone(),
            descales: self.descales.clone(),
            prefix: self.prefix.clone(),
        }
    }

    /// The tensors as calls on elements of a type read them: with stride 1 in their last axes, and sinks in f32.
    ///
    /// # Errors
    /// If a tensor is not on the call's device, or has no shape or type that the call takes.
    pub fn of_call(&self, problem: &Problem, dtype: DType, device: &Device) -> Result<Self> {
        self.expect_device(device)?;
        self.expect_dtypes(dtype)?;
        self.expect_shapes(problem)?;
        for (name, tensor) in self.named() {
            let learns_not = matches!(name, "alibi" | "prefix_k" | "prefix_v") || is_descale(name);
            if learns_not && tensor.track_op() {
                candle_core::bail!("{name} has no gradient; pass {name}.detach()")
            }
        }
        let rows = self.rows.as_ref().map(|rows| {
            let [q, kv] = &rows.numbers;
            let numbers = [q.contiguous()?, kv.contiguous()?];
            Ok::<_, candle_core::Error>(Rows { numbers, ..*rows })
        });
        let in_rows = |tensor: &Option<Tensor>| tensor.as_ref().map(in_rows).transpose();
        let sinks = self.sinks.as_ref();
        Ok(Tensors {
            alibi: self.alibi.clone(),
            bias: in_rows(&self.bias)?,
            mask: in_rows(&self.mask)?,
            sinks: sinks.map(|sinks| sinks.to_dtype(DType::F32)).transpose()?,
            rows: rows.transpose()?,
            pages: in_rows(&self.pages)?,
            cache_entries: in_rows(&self.cache_entries)?,
            descales: self.descales.clone(),
            prefix: self.prefix.as_ref().map(Prefix::in_rows).transpose()?,
        })
    }

    fn named(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let name = |packed, offsets, lengths| if packed { offsets } else { lengths };
        let [q, kv] = self.packed();
        let names = [
            name(q, "offsets_q", "lengths_q"),
            name(kv, "offsets_kv", "lengths_kv"),
        ];
        let numbers = self.rows.iter().flat_map(|rows| &rows.numbers);
        let options = [
            ("alibi", &self.alibi),
            ("bias", &self.bias),
            ("mask", &self.mask),
            ("sinks", &self.sinks),
            ("pages", &self.pages),
            ("cache_entries", &self.cache_entries),
        ];
        let options = options
            .into_iter()
            .filter_map(|(name, tensor)| Some((name, tensor.as_ref()?)));
        let prefix = self.prefix.iter().flat_map(Prefix::named);
        let descales = self.descales.iter().flat_map(Descales::named);
        let options = options.chain(names.into_iter().zip(numbers));
        options.chain(descales).chain(prefix)
    }

    fn expect_device(&self, device: &Device) -> Result<()> {
        for (name, tensor) in self.named() {
            expect_device(name, tensor, ("q", device))?;
        }
        Ok(())
    }

    fn expect_dtypes(&self, dtype: DType) -> Result<()> {
        for (name, tensor) in self.named() {
            let allowed: &[DType] = match name {
                _ if is_descale(name) => &[DType::F32],
                "alibi" => &[DType::F32],
                "bias" | "sinks" => &[DType::F16, DType::BF16, DType::F32],
                "mask" => &[DType::U8],
                "prefix_k" | "prefix_v" => &[dtype],
                _ => NUMBERS,
            };
            expect_dtype(name, tensor, allowed)?;
        }
        Ok(())
    }

    fn expect_shapes(&self, p: &Problem) -> Result<()> {
        let groups = match &self.rows {
            Some(rows) if rows.packed[0] => rows.numbers[0].elem_count().saturating_sub(1),
            _ => p.batch,
        };
        if self.is_packed() && groups == 0 {
            candle_core::bail!(
                "offsets_q must have one more element than there are sequences, 2 or more"
            )
        }
        let entries = p.batch * self.key_entries();
        let pairs = pairs(p);
        for (name, tensor) in self.named() {
            let dims = tensor.dims();
            let (fits, wanted) = match name {
                "alibi" => (
                    dims == [p.heads] || dims == [groups, p.heads],
                    format!("[{heads}] or [{groups}, {heads}]", heads = p.heads),
                ),
                "sinks" => (dims == [p.heads], format!("[{}]", p.heads)),
                "bias" | "mask" => (
                    dims.len() == 4 && dims[3] == pairs[3] && is_repeated(dims, &pairs),
                    format!("{pairs:?}, with 1 for any of the first three"),
                ),
                "pages" => (
                    dims.len() == 2 && dims[0] == entries,
                    format!("[{entries}, most pages]"),
                ),
                // How many there are is checked by the library.
                _ if is_descale(name) => (
                    dims.len() == 2,
                    "[batch, kv_heads], or [pages, kv_heads] of pages".to_owned(),
                ),
                _ if name.starts_with("prefix") => {
                    let prefix = self.prefix.as_ref();
                    let shape = prefix.map(|prefix| prefix.shape(name, p, self.is_packed()));
                    let shape = shape.unwrap_or_default();
                    (dims == shape, format!("{shape:?}"))
                }
                _ => {
                    let numbers = groups + usize::from(name.starts_with("offsets"));
                    (dims == [numbers], format!("[{numbers}]"))
                }
            };
            if !fits {
                candle_core::bail!("{name} has shape {dims:?}; it must be {wanted}")
            }
        }
        Ok(())
    }

    /// The tensors, which nobody writes meanwhile.
    pub fn lock(&self) -> LockedTensors<'_> {
        let lock = |tensor| Option::map(Option::as_ref(tensor), Locked::new);
        LockedTensors {
            alibi: lock(&self.alibi),
            bias: lock(&self.bias),
            mask: lock(&self.mask),
            sinks: lock(&self.sinks),
            pages: lock(&self.pages),
            cache_entries: lock(&self.cache_entries),
            descales: self.descales.as_ref().map(Descales::lock),
            prefix: self.prefix.as_ref().map(Prefix::lock),
            rows: self
                .rows
                .as_ref()
                .map(|rows| rows.numbers.each_ref().map(Locked::new)),
            tensors: self,
        }
    }
}

/// Tensors of options in their devices' memory.
pub(crate) struct LockedTensors<'a> {
    alibi: Option<Locked<'a>>,
    bias: Option<Locked<'a>>,
    mask: Option<Locked<'a>>,
    sinks: Option<Locked<'a>>,
    pages: Option<Locked<'a>>,
    cache_entries: Option<Locked<'a>>,
    descales: Option<LockedDescales<'a>>,
    prefix: Option<LockedPrefix<'a>>,
    rows: Option<[Locked<'a>; 2]>,
    tensors: &'a Tensors,
}

impl LockedTensors<'_> {
    /// The tensors by address, each in its full shape.
    pub fn raw<'a, M: Memory>(
        &'a self,
        addresses: &mut Addresses<'a, M>,
        problem: &Problem,
        e4m3: Option<E4m3>,
    ) -> Result<RawOptions> {
        let mut raw = RawOptions::default();
        if let Some(alibi) = &self.alibi {
            let alibi = alibi.placed()?;
            raw.alibi = Some(match alibi.layout.dims().len() {
                1 => each_entry(addresses.read(&alibi)?, problem.batch),
                _ => addresses.read(&alibi)?,
            });
        }
        if let (Some(bias), Some(tensor)) = (&self.bias, &self.tensors.bias) {
            raw.bias = Some(RawBias {
                dtype: dtype(tensor.dtype())?,
                tensor: repeated(addresses.read(&bias.placed()?)?, pairs(problem)),
            });
        }
        if let Some(mask) = &self.mask {
            raw.mask = Some(RawMask {
                bits: false,
                tensor: repeated(addresses.read(&mask.placed()?)?, pairs(problem)),
            });
        }
        if let Some(sinks) = &self.sinks {
            raw.sinks = Some(addresses.read(&sinks.placed()?)?);
        }
        // Numbers u32 are the library's i32 up to 2^31, which no length passes.
        if let Some(pages) = &self.pages {
            raw.pages = Some(addresses.read(&pages.placed()?)?);
        }
        if let Some(entries) = &self.cache_entries {
            raw.cache_entries = Some(addresses.read(&entries.placed()?)?);
        }
        if let Some(e4m3) = e4m3 {
            e4m3.set(&mut raw, addresses, self.descales.as_ref())?;
        }
        if let Some(prefix) = &self.prefix {
            raw.prefix = Some(prefix.raw(addresses, self.tensors.is_packed())?);
        }
        if let Some([q, kv]) = &self.rows {
            let [q, kv] = [
                addresses.read(&q.placed()?)?,
                addresses.read(&kv.placed()?)?,
            ];
            raw.sequences = Some(match self.tensors.packed() {
                [true, true] => Sequences::Packed { q, kv },
                [true, false] => Sequences::PackedQueries { q, kv },
                [false, _] => Sequences::Padded { q, kv },
            });
        }
        Ok(raw)
    }
}

/// Types of offsets, lengths, pages, entries and positions.
pub(crate) const NUMBERS: &[DType] = &[DType::I32, DType::U32];

/// # Errors
/// If the tensor is on another device than the one of the call's first tensor.
pub(crate) fn expect_device(
    name: &str,
    tensor: &Tensor,
    (first, device): (&str, &Device),
) -> Result<()> {
    if tensor.device().same_device(device) {
        return Ok(());
    }
    let [found, expected] = [tensor.device(), device].map(Device::location);
    candle_core::bail!("{name} is on {found:?}; it must be on the device of {first}, {expected:?}")
}

/// # Errors
/// If the tensor is of none of these types.
pub(crate) fn expect_dtype(name: &str, tensor: &Tensor, allowed: &[DType]) -> Result<()> {
    let found = tensor.dtype();
    match allowed {
        _ if allowed.contains(&found) => Ok(()),
        [allowed] => candle_core::bail!("{name} is of {found:?}; it must be of {allowed:?}"),
        _ => candle_core::bail!("{name} is of {found:?}; it must be of one of {allowed:?}"),
    }
}

/// The tensor with stride 1 in its last axis: itself, or a copy.
pub(crate) fn in_rows(tensor: &Tensor) -> Result<Tensor> {
    match (tensor.dims().last(), tensor.stride().last()) {
        (_, Some(1)) | (Some(0 | 1), _) => Ok(tensor.clone()),
        _ => tensor.contiguous(),
    }
}

/// The library's name of a type.
pub(crate) fn dtype(dtype: DType) -> Result<Dtype> {
    match dtype {
        DType::F16 => Ok(Dtype::F16),
        DType::BF16 => Ok(Dtype::Bf16),
        DType::F32 => Ok(Dtype::F32),
        _ => candle_core::bail!("attention computes F16, BF16 and, on the CPU, F32; not {dtype:?}"),
    }
}

/// The shape of a tensor with an element for each pair of a query and a key.
fn pairs(p: &Problem) -> [usize; 4] {
    [p.batch, p.heads, p.seqlen_q, p.seqlen_kv]
}

/// Whether repeated axes of extent 1 make the shape full.
fn is_repeated(dims: &[usize], full: &[usize]) -> bool {
    let mut axes = dims.iter().zip(full);
    axes.all(|(&extent, &full)| extent == full || extent == 1)
}

/// The tensor with axes of extent 1 repeated.
fn repeated(tensor: RawTensor, full: [usize; 4]) -> RawTensor {
    let is_single = |axis: usize| tensor.shape[axis] == 1;
    let stride = |axis| {
        if is_single(axis) {
            0
        } else {
            tensor.strides[axis]
        }
    };
    RawTensor {
        address: tensor.address,
        shape: full,
        strides: [stride(0), stride(1), stride(2), 1],
    }
}

/// Numbers of heads, for each entry of a batch.
fn each_entry(heads: RawTensor<1>, batch: usize) -> RawTensor<2> {
    RawTensor {
        address: heads.address,
        shape: [batch, heads.shape[0]],
        strides: [0, heads.strides[0]],
    }
}
