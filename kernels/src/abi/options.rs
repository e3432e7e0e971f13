//! Options of an attention call, as kernels with options read them.

use super::{BlockMapRef, Divisor, PagesRef};

/// The options of a call, beside q, k and v. Only kernels with options read them.
///
/// Lengths, windows and sinks are data. What would cost an instruction for each score stands behind a
/// [`Switch`], which is decided when the PTX is loaded.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// Device address of ALiBi's slopes, `f32`: slope of a head at `batch * alibi_batch + head * alibi_head`; 0 if all are 0.
    pub alibi: u64,
    /// Elements from a batch entry's slopes to the next ones.
    pub alibi_batch: i64,
    /// Elements from a head's slope to the next one. Where [`Switch::AlibiRows`] is on, each of its queries has a slope there.
    pub alibi_head: i64,
    /// Device address of the sinks, `f32`; 0 if there are none.
    pub sinks: u64,
    /// Elements from a head's sink to the next one.
    pub sinks_head: i64,
    /// Query `i` sees keys from `i + seqlen_kv - seqlen_q - left` on.
    pub left: i32,
    /// Query `i` sees keys up to `i + seqlen_kv - seqlen_q + right`.
    pub right: i32,
    /// Bound of scores, where [`Switch::Softcap`] is on.
    pub softcap: f32,
    /// Elements of a row of v and o: a multiple of 8, at most the kernel's head dim.
    pub dim_v: u32,
    /// Device address of the [`KeyRange`] of each query, `[batch, seqlen_q]`, where [`Switch::Ranges`] is on.
    pub key_ranges: u64,
    /// Device address of the [`QueryRange`] of each key, `[batch, seqlen_kv]`, where [`Switch::Ranges`] is on; for
    /// backward kernels, and those that round keys and values.
    pub query_ranges: u64,
    /// The bias of scores, where a switch of a bias is on.
    pub bias: PairsRef,
    /// The number of batch entries, which alternate in the order of tiles, where all share a bias; else 1.
    pub entries: Divisor,
    /// Entries of a cache of keys and values, which entries of the batch name; unused without [`cache`](Self::cache).
    pub cache_entries: u32,
    /// Device address of `i32[batch]`: the entry of k and v that serves each batch entry; 0 where each has its own. Numbers that
    /// are not allowed are moved to what is. Where [`Switch::Pages`] is on, the table of [pages](Self::pages).
    pub cache: u64,
    /// The pages of each batch entry, where [`Switch::Pages`] is on: then entries of k and v are pages.
    pub pages: PagesRef,
    /// Which keys a block takes, where lengths differ: for kernels that decode.
    pub units: UnitsRef,
    /// Device address of a [`QueryTile`] for each query tile of a head, where [`Switch::Tiles`] is on.
    pub tiles: u64,
    /// Which pairs see each other, where [`Switch::MaskBytes`] or [`Switch::MaskBits`] is on. Offsets count bytes or words
    /// of 32 keys.
    pub mask: PairsRef,
    /// Blocks of keys in which the mask shows a pair to a query tile, where there is one.
    pub blocks: BlockMapRef,
    /// Query tiles in which the mask shows a pair to a key tile, where there is one; for backward kernels.
    pub query_blocks: BlockMapRef,
    /// Arrays of a score or mask of [another crate](crate::attention::custom).
    pub custom: [ArrayRef; ARRAYS],
    /// The lengths of sequences, where [`Switch::Lengths`] is on.
    pub lengths: LengthsRef,
}

/// Which rows of each batch entry are its one sequence, `i32[batch]` each; 0 where all rows are.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LengthsRef {
    /// Device address of the numbers of queries.
    pub q: u64,
    /// Device address of the numbers of keys, from key 0 on.
    pub kv: u64,
    /// Device address of the first keys.
    pub first_keys: u64,
}

/// A tensor with an element for each pair of query and key, in device memory; 0 is the stride of an axis that repeats.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairsRef {
    /// Device address of the first element.
    pub address: u64,
    /// Elements from a batch entry to the next one.
    pub batch_stride: i64,
    /// Elements from a query head to the next one.
    pub head_stride: i64,
    /// Elements from a query to the next one.
    pub query_stride: i64,
}

/// Units: parts of the keys of all batch entries, of one size but for the last of each entry, one for each block. They stand in place of splits of
/// each entry's keys, which would be as long as the entry.
///
/// Blocks find them by lengths: [`Switch::Lengths`] is on.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitsRef {
    /// Device address of `i32[entries + 1]`: the first unit of each batch entry, and the one behind its last, which blocks write and the
    /// combine kernel reads; 0 if there are no units.
    pub offsets: u64,
    /// How many units a launch has.
    pub count: Divisor,
    /// How many units of one size fit these, whatever the entries' lengths: each entry has one more.
    pub whole: Divisor,
    /// The multiple of keys at which units begin.
    pub step: Divisor,
    /// The least keys of a unit that is not the entry's last: a multiple of [`step`](Self::step).
    pub least: u32,
}

impl UnitsRef {
    /// Columns of o that a warp combines at a time.
    pub const COMBINED: u32 = 128;

    /// Parts of a row of o of `dim` columns, each with as many as a warp combines at a time: a power of two.
    #[inline(always)]
    pub const fn parts(dim: u32) -> u32 {
        dim.div_ceil(Self::COMBINED).next_power_of_two()
    }

    /// Batch entries.
    #[inline(always)]
    pub const fn entries(&self) -> u32 {
        self.count.value - self.whole.value
    }

    /// Keys of a unit, about as few as make no more units than there are: all entries together have `all` keys, at most 2^30, which
    /// make `units_of(keys)` units of so many keys.
    ///
    /// ```
    /// use kernels::abi::{Divisor, UnitsRef};
    ///
    /// let [count, whole, step] = [6, 4, 32].map(Divisor::new);
    /// let units = UnitsRef { count, whole, step, least: 64, ..UnitsRef::default() };
    /// let keys = |lengths: [u32; 2]| units.keys(lengths.iter().sum(), |keys| lengths.iter().map(|n| n.div_ceil(keys)).sum());
    /// assert_eq!(keys([960, 960]), 320);
    /// assert_eq!(keys([1900, 20]), 384);
    /// assert_eq!(keys([60, 0]), 64);
    /// ```
    #[inline(always)]
    pub fn keys(&self, all: u32, units_of: impl Fn(u32) -> u32) -> u32 {
        let (mut low, mut high) = (self.part(all, &self.count), self.part(all, &self.whole));
        if units_of(low) <= self.count.value {
            return low;
        }
        // A sixteenth more makes no difference.
        while high - low > self.step.value.max(low / 16) {
            let (steps, _) = self.step.divide((low + high) / 2);
            let middle = steps * self.step.value;
            match units_of(middle) <= self.count.value {
                true => high = middle,
                false => low = middle,
            }
        }
        high
    }

    /// Keys of each of so many parts of all, rounded up to a step, but no fewer than a unit has.
    #[inline(always)]
    fn part(&self, all: u32, parts: &Divisor) -> u32 {
        let (keys, _) = parts.divide(all + parts.value - 1);
        let (steps, _) = self.step.divide(keys + self.step.value - 1);
        (steps * self.step.value).max(self.least)
    }
}

/// A query tile of packed queries, whose rows are of one sequence: the keys of each lie in an entry of their own.
///
/// The kernel that finds ranges of sequences writes them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueryTile {
    /// The sequence: the entry of its keys.
    pub sequence: u32,
    /// The first row, counted with those of all sequences.
    pub first: u32,
    /// The first row of the sequence.
    pub start: u32,
    /// The row behind the sequence's last one; [`first`](Self::first) where there are fewer tiles.
    pub end: u32,
}

/// The keys that a query sees, where a batch consists of sequences.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// The first one.
    pub start: i32,
    /// The first one after.
    pub end: i32,
    /// The key at the query's own place is `query + offset`; [`ALONE`](Self::ALONE) for a query of no sequence.
    pub offset: i32,
    /// Keys whose first query is this one, or an earlier one.
    pub begun: i32,
}

impl KeyRange {
    /// The offset of a query of no sequence: more than rows can differ by.
    pub const ALONE: i32 = i32::MIN;
}

/// The queries that see a key, where a batch consists of sequences: the first one, and the first one after.
pub type QueryRange = [i32; 2];

/// Arrays of a call with a score or mask of another crate.
pub const ARRAYS: usize = 4;

/// An array of 4-byte elements in device memory.
#[repr(C)]
#[cfg_attr(
    not(target_arch = "nvptx64"),
    derive(bytemuck::Pod, bytemuck::Zeroable)
)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ArrayRef {
    /// Device address of the first element.
    pub address: u64,
    /// How many elements, at most [`u32::MAX`].
    pub len: u64,
}

/// A part of a kernel that is there or not when the driver compiles it.
///
/// The kernel holds the part behind a constant 0 in its PTX. The host writes 1 in its place, and the driver's assembler
/// removes what is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Switch {
    /// Scores become `softcap * tanh(score / softcap)`, with an error of about `2^-21 softcap`; in FP8 `2^-10` of the score.
    Softcap,
    /// [`Softcap`](Self::Softcap), with an error of about `2^-21 softcap` or `2^-18` of the score, whichever is less: for bounds
    /// above [`NEAR_SOFTCAP`].
    SoftcapFar,
    /// A slope times the distance of query and key is subtracted from each score.
    Alibi,
    /// [`Alibi`](Self::Alibi), with a slope for each query: sequences have slopes of their own.
    AlibiRows,
    /// Queries see ranges of keys from a table, in the place of a window.
    Ranges,
    /// Queries see a window of their entry's sequence, which [lengths](LengthsRef) bound: [`Ranges`](Self::Ranges) without a table, for
    /// kernels whose tiles always have rows of several heads.
    Lengths,
    /// A bias of this type is added to each score.
    BiasF16,
    /// A bias of this type is added to each score.
    BiasBf16,
    /// A bias of this type is added to each score.
    BiasF32,
    /// Rows of the bias are whole vectors of 8 elements, of 16 bits, at multiples of 16 bytes.
    BiasVectors,
    /// The gradient of the bias is wanted.
    BiasGradient,
    /// The gradient of the bias is wanted, and its rows are whole vectors of 4 elements at multiples of 16 bytes.
    BiasGradientVectors,
    /// Bytes say which pairs see each other: 0 hides a key.
    MaskBytes,
    /// Bits say so: key `j` is bit `j % 32` of word `j / 32`.
    MaskBits,
    /// Keys and values lie in pages, which a table names.
    Pages,
    /// Query tiles are those of packed queries, which a [table](QueryTile) has.
    Tiles,
    /// Maxima follow every block of keys. Otherwise the rows of a warp vote on that, and a row's roundings depend on its
    /// neighbours.
    Exact,
    /// Query tiles have the rows of all heads that share a key/value head, without options of pairs or slopes. A row has the bits that it
    /// has without it, where [`Exact`](Self::Exact) is on.
    Group,
    /// O is f32, in a kernel that multiplies e4m3: such kernels alone have it, without options, too.
    F32Output,
    /// The blocks of a cluster have the splits of one tile, in kernels that decode, and combine them. For compute capability 9.0 on.
    Cluster,
}

impl Switch {
    /// All switches.
    pub const ALL: &[Self] = &[
        Switch::Softcap,
        Switch::SoftcapFar,
        Switch::Alibi,
        Switch::AlibiRows,
        Switch::Ranges,
        Switch::Lengths,
        Switch::BiasF16,
        Switch::BiasBf16,
        Switch::BiasF32,
        Switch::BiasVectors,
        Switch::BiasGradient,
        Switch::BiasGradientVectors,
        Switch::MaskBytes,
        Switch::MaskBits,
        Switch::Pages,
        Switch::Tiles,
        Switch::Exact,
        Switch::Group,
        Switch::F32Output,
        Switch::Cluster,
    ];

    /// Combinations that the kernels are assembled with before any call asks for them: each alone, and some together.
    pub const COMBINATIONS: &[&[Self]] = &[
        &[Switch::Softcap],
        &[Switch::SoftcapFar],
        &[Switch::Alibi],
        &[Switch::Ranges],
        &[Switch::BiasF16],
        &[Switch::BiasBf16],
        &[Switch::BiasF32],
        &[Switch::BiasF16, Switch::BiasVectors],
        &[Switch::MaskBytes],
        &[Switch::MaskBits],
        &[Switch::Ranges, Switch::Pages],
        &[Switch::Ranges, Switch::Pages, Switch::Tiles],
        &[Switch::Exact],
        &[Switch::Ranges, Switch::Pages, Switch::Exact],
        &[Switch::Exact, Switch::Group],
        &[Switch::Ranges, Switch::Pages, Switch::Exact, Switch::Group],
        &[Switch::Ranges, Switch::Alibi],
        &[Switch::Ranges, Switch::AlibiRows],
        &[Switch::Softcap, Switch::Alibi],
        &[Switch::BiasF32, Switch::MaskBytes],
        &[
            Switch::Ranges,
            Switch::Softcap,
            Switch::BiasF16,
            Switch::MaskBits,
        ],
        &[Switch::F32Output],
        &[Switch::F32Output, Switch::Ranges],
        &[Switch::Cluster],
        &[Switch::Lengths, Switch::Alibi],
        &[Switch::Lengths, Switch::Pages, Switch::Cluster],
    ];

    /// Whether it is of a tensor with an element for each pair of query and key.
    pub const fn is_of_pairs(self) -> bool {
        !matches!(
            self,
            Switch::Softcap
                | Switch::SoftcapFar
                | Switch::Alibi
                | Switch::AlibiRows
                | Switch::Ranges
                | Switch::Lengths
                | Switch::Pages
                | Switch::Tiles
                | Switch::Exact
                | Switch::Group
                | Switch::F32Output
                | Switch::Cluster
        )
    }

    /// The constant in the PTX, by name, and its value where this is on. Switches of one constant exclude each other.
    pub const fn constant(self) -> (&'static str, u32) {
        match self {
            Switch::Softcap => ("softcap", 1),
            Switch::SoftcapFar => ("softcap", 2),
            Switch::Alibi => ("alibi", 1),
            Switch::AlibiRows => ("alibi", 2),
            Switch::Ranges => ("ranges", 1),
            Switch::Lengths => ("lengths", 1),
            Switch::BiasF16 => ("bias", 1),
            Switch::BiasBf16 => ("bias", 2),
            Switch::BiasF32 => ("bias", 3),
            Switch::BiasVectors => ("bias_vectors", 1),
            Switch::BiasGradient => ("bias_gradient", 1),
            Switch::BiasGradientVectors => ("bias_gradient", 2),
            Switch::MaskBytes => ("mask", 1),
            Switch::MaskBits => ("mask", 2),
            Switch::Pages => ("pages", 1),
            Switch::Tiles => ("tiles", 1),
            Switch::Exact => ("exact", 1),
            Switch::Group => ("group", 1),
            Switch::F32Output => ("f32_output", 1),
            Switch::Cluster => ("cluster", 1),
        }
    }

    /// Whether kernels of gradients have it. Their tiles are transposed: a lane has no neighbouring keys. Pages have no gradients,
    /// and gradients no maxima and no tiles of several heads.
    pub const fn is_of_gradients(self) -> bool {
        !matches!(
            self,
            Switch::Lengths
                | Switch::BiasVectors
                | Switch::Pages
                | Switch::Tiles
                | Switch::Exact
                | Switch::Group
                | Switch::F32Output
                | Switch::Cluster
        )
    }

    /// Whether kernels whose tiles always have rows of several heads have it.
    pub const fn is_of_groups(self) -> bool {
        !self.is_of_pairs() && !matches!(self, Switch::Group | Switch::F32Output)
    }

    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Switch::Softcap => "softcap",
            Switch::SoftcapFar => "softcap_far",
            Switch::Alibi => "alibi",
            Switch::AlibiRows => "alibi_rows",
            Switch::Ranges => "ranges",
            Switch::Lengths => "lengths",
            Switch::BiasF16 => "bias_f16",
            Switch::BiasBf16 => "bias_bf16",
            Switch::BiasF32 => "bias_f32",
            Switch::BiasVectors => "bias_vectors",
            Switch::BiasGradient => "bias_gradient",
            Switch::BiasGradientVectors => "bias_gradient_vectors",
            Switch::MaskBytes => "mask_bytes",
            Switch::MaskBits => "mask_bits",
            Switch::Pages => "pages",
            Switch::Tiles => "tiles",
            Switch::Exact => "exact",
            Switch::Group => "group",
            Switch::F32Output => "f32_output",
            Switch::Cluster => "cluster",
        }
    }
}

/// The largest bound of scores for which [`Switch::Softcap`] serves: scores then have an error of 3e-5.
pub const NEAR_SOFTCAP: f32 = 64.0;

/// The switches that are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Switches(u32);

impl Switches {
    /// None.
    pub const NONE: Self = Switches(0);

    /// These, with one of them on or off.
    #[must_use]
    pub const fn with(self, switch: Switch, on: bool) -> Self {
        let others = self.0 & !(1 << switch as u32);
        Switches(others | (on as u32) << switch as u32)
    }

    /// Whether a switch is on.
    pub const fn has(self, switch: Switch) -> bool {
        self.0 >> switch as u32 & 1 != 0
    }

    /// A kernel's PTX with these switches on, and with a head of the version and target that they need.
    ///
    /// ```
    /// use kernels::abi::{Switch, Switches};
    ///
    /// let ptx = "mov.b32 switch_softcap, 0; mov.b32 switch_mask, 0;";
    /// let on = Switches::NONE.with(Switch::MaskBits, true);
    /// let written = on.written(ptx.to_owned());
    /// assert_eq!(written.unwrap(), "mov.b32 switch_softcap, 0; mov.b32 switch_mask, 2;");
    /// ```
    ///
    /// # Errors
    /// A switch that is on, and that the kernel lacks. All kernels with options have all switches of their pass but
    /// [`F32Output`](Switch::F32Output) and [`Cluster`](Switch::Cluster), those of other crates too: a score or mask comes after the
    /// options. So none may be left out.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn written(self, ptx: String) -> Result<String, Switch> {
        let mut on = Switch::ALL.iter().filter(|switch| self.has(**switch));
        let ptx = match self.has(Switch::Cluster) {
            true => crate::text::raised(&ptx),
            false => ptx,
        };
        on.try_fold(ptx, |ptx, &switch| {
            let (constant, value) = switch.constant();
            let [off, on] = [0, value].map(|value| format!("mov.b32 switch_{constant}, {value};"));
            let written = ptx.replace(&off, &on);
            if written == ptx {
                Err(switch)
            } else {
                Ok(written)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Switch, Switches};

    #[test]
    fn a_switch_that_the_kernel_lacks_is_named() {
        let ptx = "mov.b32 switch_bias, 0; mov.b32 switch_bias_vectors, 0;";
        let on = |switches: &[Switch]| {
            let all = switches.iter();
            let all = all.fold(Switches::NONE, |all, &switch| all.with(switch, true));
            all.written(ptx.to_owned())
        };
        assert_eq!(on(&[]), Ok(ptx.to_owned()));
        let both = "mov.b32 switch_bias, 3; mov.b32 switch_bias_vectors, 1;";
        let found = on(&[Switch::BiasF32, Switch::BiasVectors]);
        assert_eq!(found, Ok(both.to_owned()));
        for missing in [Switch::Softcap, Switch::BiasGradient, Switch::MaskBits] {
            assert_eq!(on(&[Switch::BiasF16, missing]), Err(missing));
        }
        // Two values of one constant: the second has nothing to replace.
        let found = on(&[Switch::BiasF16, Switch::BiasF32]);
        assert_eq!(found, Err(Switch::BiasF32));
    }
}
