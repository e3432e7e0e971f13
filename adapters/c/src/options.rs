//! Options of a call.

use crate::fp8::{self, FerroattnE4m3, FerroattnFp8};
use crate::pointer::{self, Parameters};
use crate::prefix;
use crate::status::{Failure, FerroattnStatus, guarded};
use crate::tensor::{FerroattnTensor, Use, dtype};
use ferroattn::{Attention, Dtype, RawBias, RawMask, RawOptions, RawSequences, Sequences};
use std::ffi::c_char;
use std::mem::offset_of;
use std::ptr::null;

/// Types of a mask's elements.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FerroattnMask {
    /// Bytes; 0 hides a key.
    Bytes = 0,
    /// Words of 32 bits: key `j` is bit `j % 32` of word `j / 32`, and 0 hides it.
    Bits = 1,
}

/// Sequences of several lengths in a batch: a query sees keys of its own sequence alone.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FerroattnSequences {
    /// All entries of the batch fill their rows.
    None = 0,
    /// Offsets `int32[n + 1]` of `n` sequences in the one entry of the batch, which never fall.
    Packed = 1,
    /// Lengths `int32[batch]`.
    Padded = 2,
    /// Offsets `int32[n + 1]` of queries, as of `Packed`, and lengths `int32[n]` of keys, which `pages` have: a row of these for each
    /// sequence, `int32[n, most]`. Bias and mask do not go with them. Since version 7.
    PackedQueries = 3,
}

/// Options of a call; `ferroattn_options_init` turns all off. Flags are 0 or 1.
///
/// Tensors have full shapes: an axis that an option does not have is repeated, with a stride of 0. NULL turns an option off.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FerroattnOptions {
    /// `sizeof(FerroattnOptions)`.
    pub struct_size: u32,
    /// Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q`.
    pub causal: u32,
    /// Keys before a query's own place that it sees; -1 for all.
    pub window_left: i64,
    /// Keys after a query's own place that it sees; -1 for all. With `causal`, none.
    pub window_right: i64,
    /// Factor of scores; NaN for `1 / sqrt(dim)`.
    pub scale: f32,
    /// The bound `c` of scores, which become `c * tanh(score / c)`; 0 for none.
    pub softcap: f32,
    /// Splits of the keys; 0 for as many as fill the GPU.
    pub splits: u32,
    /// Whether gradients are the same bits in every run.
    pub deterministic: u32,
    /// Whether a GPU checks the numbers of sequences, first keys, entries and pages before it computes. The CPU always does.
    pub check_lengths: u32,
    /// Which `FerroattnSequences` the call has.
    pub sequences: u32,
    /// The `FerroattnDtype` of the bias.
    pub bias_dtype: u32,
    /// The `FerroattnMask` of the mask.
    pub mask_type: u32,
    /// Name of the kernel; NULL for the best.
    pub kernel: *const c_char,
    /// Slopes of ALiBi, `float[batch, heads]`, or of packed sequences `float[sequences, heads]`.
    pub alibi: *const FerroattnTensor,
    /// Sinks, `float[heads]`: logits of keys without values.
    pub sinks: *const FerroattnTensor,
    /// A bias that is added to scores, `[batch, heads, seqlen_q, seqlen_kv]`, with stride 1 in the last axis.
    pub bias: *const FerroattnTensor,
    /// A mask `[batch, heads, seqlen_q, seqlen_kv]`, of bits with `ceil(seqlen_kv / 32)` words in the last axis, of stride 1.
    pub mask: *const FerroattnTensor,
    /// Offsets or lengths of queries, with stride 1. NULL for padded sequences of which all queries count.
    pub sequences_q: *const FerroattnTensor,
    /// Offsets or lengths of keys, with stride 1.
    pub sequences_kv: *const FerroattnTensor,
    /// The first key of each entry of the batch, `int32[batch]` with stride 1; not of packed sequences.
    pub first_keys: *const FerroattnTensor,
    /// The entry of k and v for each entry of the batch, `int32[batch]` with stride 1: k and v have any number of entries. Such a
    /// call has no gradients.
    pub cache_entries: *const FerroattnTensor,
    /// The pages of each entry of the batch, `int32[batch, most]` with stride 1 in the last axis: k and v are
    /// `[pages, kv_heads, page, dim]`, and key `j` is row `j % page` of page `table[batch, j / page]`. A page has a power of 2 of keys,
    /// and seqlen_kv is `most * page`. Such a call has no gradients. Since version 2.
    pub pages: *const FerroattnTensor,
    /// Whether results of a query have the same bits beside any neighbours in the batch, and however its sequence is cut into chunks.
    /// Since version 3.
    pub batch_invariant: u32,
    /// Keys of a split, in place of `splits`; 0 for none. Since version 3.
    pub split_keys: u32,
    /// Keys that all entries of the batch share before their own, `[1, kv_heads, keys, dim]` of k's type, with stride 1 in dim. A call
    /// has both of these or neither. Such a call has no gradients. Since version 4.
    pub prefix_k: *const FerroattnTensor,
    /// Values of these keys, `[1, kv_heads, keys, dim_v]`. Since version 4.
    pub prefix_v: *const FerroattnTensor,
    /// Pages of k and v with such keys, `int32[n]` with stride 1, in place of `prefix_k` and `prefix_v`; `pages` are given, too. Since
    /// version 4.
    pub prefix_pages: *const FerroattnTensor,
    /// Keys of `prefix_pages`, of which the last page has 1 or more; else 0. Since version 4.
    pub prefix_keys: u64,
    /// Which `FerroattnFp8` rounds q, k and v to e4m3, which Hopper's tensor cores multiply at twice the rate. Such a call may
    /// have a window, a softcap, sinks, sequences and first keys, no other option, and no gradients. Since version 5.
    pub fp8: u32,
    /// Which `FerroattnE4m3` the inputs are. A call of such `Inputs` is in FP8; one of a `Cache` has no gradients, bias, mask or prefix, and
    /// is not batch invariant. Since version 6; 0 before.
    pub e4m3: u32,
    /// What multiplies q of e4m3, `float[batch, kv_heads]` of any strides; NULL for 1. Since version 6.
    pub q_descale: *const FerroattnTensor,
    /// What multiplies k of e4m3, likewise, or `float[pages, kv_heads]`. Since version 6.
    pub k_descale: *const FerroattnTensor,
    /// What multiplies v of e4m3, likewise. Since version 6.
    pub v_descale: *const FerroattnTensor,
    /// Whether each page of a cache has a row of `k_descale` and `v_descale`. Since version 6.
    pub page_descales: u32,
    /// Whether o of a forward pass with `fp8` is `float` beside inputs of 16 bits. Since version 8; 0 before.
    pub f32_o: u32,
}

// SAFETY: numbers and pointers, the size first.
unsafe impl Parameters for FerroattnOptions {
    const NAME: &'static str = "FerroattnOptions";
    const SIZES: &'static [usize] = &[
        offset_of!(Self, pages),
        offset_of!(Self, batch_invariant),
        offset_of!(Self, prefix_k),
        offset_of!(Self, fp8),
        offset_of!(Self, q_descale),
        size_of::<Self>(),
    ];
}

impl Default for FerroattnOptions {
    fn default() -> Self {
        FerroattnOptions {
            struct_size: size_of::<Self>() as u32,
            causal: 0,
            window_left: -1,
            window_right: -1,
            scale: f32::NAN,
            softcap: 0.0,
            splits: 0,
            deterministic: 1,
            check_lengths: 0,
            sequences: FerroattnSequences::None as u32,
            bias_dtype: 0,
            mask_type: FerroattnMask::Bytes as u32,
            kernel: null(),
            alibi: null(),
            sinks: null(),
            bias: null(),
            mask: null(),
            sequences_q: null(),
            sequences_kv: null(),
            first_keys: null(),
            cache_entries: null(),
            pages: null(),
            batch_invariant: 0,
            split_keys: 0,
            prefix_k: null(),
            prefix_v: null(),
            prefix_pages: null(),
            prefix_keys: 0,
            fp8: FerroattnFp8::None as u32,
            e4m3: FerroattnE4m3::None as u32,
            q_descale: null(),
            k_descale: null(),
            v_descale: null(),
            page_descales: 0,
            f32_o: 0,
        }
    }
}

/// Writes options that are all off, and their size, which is `sizeof(FerroattnOptions)`.
///
/// # Safety
/// `options` is NULL, or so many bytes of it may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_options_init(
    options: *mut FerroattnOptions,
    struct_size: u32,
) -> FerroattnStatus {
    // SAFETY: the caller's word.
    guarded(|| unsafe { pointer::init(options, "options", struct_size) })
}

/// A call with these options on elements of this type, and their tensors.
///
/// # Safety
/// The pointer is null, or the options and all that they point to are valid.
pub(crate) unsafe fn read(
    options: *const FerroattnOptions,
    dtype: Dtype,
    of: Use,
) -> Result<(Attention<'static>, RawOptions), Failure> {
    let given = match options.is_null() {
        true => FerroattnOptions::default(),
        // SAFETY: the caller's word.
        false => unsafe { pointer::parameters(options, "options")? },
    };
    // SAFETY: the caller's word.
    let kernel = unsafe { pointer::text(given.kernel, "kernel")? };
    // SAFETY: the caller's word.
    let mut tensors = unsafe { given.tensors(of)? };
    // SAFETY: the caller's word.
    unsafe {
        tensors.prefix = prefix::read(&given, dtype, of)?;
        (tensors.e4m3, tensors.e4m3_cache) = fp8::inputs(&given, of)?;
    }
    Ok((given.call(kernel)?, tensors))
}

impl FerroattnOptions {
    /// A call without tensors of options.
    fn call(&self, kernel: Option<String>) -> Result<Attention<'static>, Failure> {
        let mut call = Attention::new()
            .causal(flag(self.causal, "causal")?)
            .window(
                bound(self.window_left, "window_left")?,
                bound(self.window_right, "window_right")?,
            )
            .splits(self.splits)
            .deterministic(flag(self.deterministic, "deterministic")?);
        if !self.scale.is_nan() {
            call = call.scale(self.scale);
        }
        if self.softcap != 0.0 {
            call = call.softcap(self.softcap);
        }
        Ok(match kernel {
            Some(kernel) => call.kernel(kernel),
            None => call,
        })
    }

    /// The options' tensors.
    ///
    /// # Safety
    /// Each pointer is null, or the tensor behind it is valid.
    unsafe fn tensors(&self, of: Use) -> Result<RawOptions, Failure> {
        let bias = match self.bias.is_null() {
            true => None,
            false => Some(dtype(self.bias_dtype, "bias_dtype")?),
        };
        let bits = mask_has_bits(self.mask_type)?;
        let mut options = RawOptions::default();
        options.check_lengths = flag(self.check_lengths, "check_lengths")?;
        options.batch_invariant = flag(self.batch_invariant, "batch_invariant")?;
        options.split_keys = self.split_keys;
        options.fp8 = fp8::rounding(self.fp8)?;
        options.f32_o = flag(self.f32_o, "f32_o")?;
        // SAFETY: the caller's word.
        unsafe {
            options.alibi = optional(of, "alibi", self.alibi, 4)?;
            options.sinks = optional(of, "sinks", self.sinks, 4)?;
            if let Some(dtype) = bias {
                let tensor = optional(of, "bias", self.bias, dtype.bytes() as u64)?;
                options.bias = tensor.map(|tensor| RawBias { dtype, tensor });
            }
            let tensor = optional(of, "mask", self.mask, if bits { 4 } else { 1 })?;
            options.mask = tensor.map(|tensor| RawMask { bits, tensor });
            options.sequences = self.sequences(of)?;
            options.first_keys = optional(of, "first_keys", self.first_keys, 4)?;
            options.cache_entries = optional(of, "cache_entries", self.cache_entries, 4)?;
            options.pages = optional(of, "pages", self.pages, 4)?;
        }
        Ok(options)
    }

    /// The offsets or lengths.
    ///
    /// # Safety
    /// Both pointers are null, or the tensors behind them are valid.
    unsafe fn sequences(&self, of: Use) -> Result<Option<RawSequences>, Failure> {
        const NONE: u32 = FerroattnSequences::None as u32;
        const PACKED: u32 = FerroattnSequences::Packed as u32;
        const PADDED: u32 = FerroattnSequences::Padded as u32;
        const PACKED_QUERIES: u32 = FerroattnSequences::PackedQueries as u32;
        // SAFETY: the caller's word.
        let [q, kv] = unsafe {
            [
                optional(of, "sequences_q", self.sequences_q, 4)?,
                optional(of, "sequences_kv", self.sequences_kv, 4)?,
            ]
        };
        match (self.sequences, q, kv) {
            (NONE, None, None) => Ok(None),
            (PACKED, Some(q), Some(kv)) => Ok(Some(Sequences::Packed { q, kv })),
            (PADDED, Some(q), Some(kv)) => Ok(Some(Sequences::Padded { q, kv })),
            (PADDED, None, Some(kv)) => Ok(Some(RawSequences::padded_keys(kv))),
            (PACKED_QUERIES, Some(q), Some(kv)) => Ok(Some(Sequences::PackedQueries { q, kv })),
            (NONE, ..) => Err(Failure::argument(
                "sequences_q or sequences_kv is given; sequences must say of which kind",
            )),
            (PACKED | PADDED | PACKED_QUERIES, ..) => Err(Failure::argument(
                "sequences_q or sequences_kv is NULL; sequences have both, or padded ones lengths of keys alone",
            )),
            (other, ..) => Err(Failure::argument(format!(
                "sequences is {other}, which is no FerroattnSequences"
            ))),
        }
    }
}

/// A tensor that may be off.
///
/// # Safety
/// The pointer is null, or the tensor behind it is valid.
pub(crate) unsafe fn optional<const R: usize>(
    of: Use,
    name: &str,
    tensor: *const FerroattnTensor,
    bytes: u64,
) -> Result<Option<ferroattn::RawTensor<R>>, Failure> {
    // SAFETY: the caller's word.
    let tensor = unsafe { pointer::optional(tensor, name)? };
    tensor
        .map(|tensor| of.tensor(name, &tensor, bytes))
        .transpose()
}

/// Two tensors that may be off together.
///
/// # Safety
/// Each pointer is null, or the tensor behind it is valid.
pub(crate) unsafe fn both<const R: usize>(
    of: Use,
    [(first, one), (second, other)]: [(&str, *const FerroattnTensor); 2],
    bytes: u64,
) -> Result<Option<[ferroattn::RawTensor<R>; 2]>, Failure> {
    // SAFETY: the caller's word.
    let tensors = unsafe {
        [
            optional(of, first, one, bytes)?,
            optional(of, second, other, bytes)?,
        ]
    };
    let missing = match tensors {
        [None, None] => return Ok(None),
        [Some(one), Some(other)] => return Ok(Some([one, other])),
        [None, _] => first,
        [_, None] => second,
    };
    Err(Failure::argument(format!(
        "{missing} is NULL; a call has both {first} and {second}, or neither"
    )))
}

pub(crate) fn flag(number: u32, name: &str) -> Result<bool, Failure> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Failure::argument(format!(
            "{name} is {number}; it must be 0 or 1"
        ))),
    }
}

/// One side of the window.
fn bound(number: i64, name: &str) -> Result<Option<usize>, Failure> {
    match (number, usize::try_from(number)) {
        (-1, _) => Ok(None),
        (_, Ok(keys)) => Ok(Some(keys)),
        _ => Err(Failure::argument(format!(
            "{name} is {number}; it must be at least 0, or -1 for no bound"
        ))),
    }
}

fn mask_has_bits(number: u32) -> Result<bool, Failure> {
    const BYTES: u32 = FerroattnMask::Bytes as u32;
    const BITS: u32 = FerroattnMask::Bits as u32;
    match number {
        BYTES => Ok(false),
        BITS => Ok(true),
        _ => Err(Failure::argument(format!(
            "mask_type is {number}, which is no FerroattnMask"
        ))),
    }
}
