//! Classes of devices, told apart by their shared memory and generation, and the tiles of each.
//!
//! Shared memory is what bounds a tile: it decides how large the blocks of K and V are and how many
//! thread blocks fit a multiprocessor, which should be two or, where they do not fit, one of twice
//! the warps. Registers come next: they are as many everywhere, but the assembler needs more of them
//! for newer devices, and no tile may spill on one that it is for. Only the tiles of [`Class::Sm90`]
//! were measured, on an H200; the others are reasoned from the devices' limits.

use crate::catalog::{COMBINE_TILE, Family, PACK_TILE, Tile, wide};

/// Shared memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// What a block can have if it asks for it.
    pub block: u32,
    /// What the blocks on a multiprocessor have together.
    pub multiprocessor: u32,
}

impl SharedMemory {
    /// What the system takes of each block's.
    const RESERVED: u32 = 1 << 10;

    /// Blocks with so many bytes each that a multiprocessor holds.
    #[must_use]
    pub const fn resident_blocks(&self, bytes: u32) -> u32 {
        if bytes > self.block {
            return 0;
        }
        self.multiprocessor / (bytes + Self::RESERVED)
    }
}

/// Devices with the same tiles, named after the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// As an A100.
    Sm80,
    /// As the GPUs for workstations and games from compute capability 8.6 on.
    Sm86,
    /// As an H100.
    Sm90,
    /// As a B200: the shared memory of an H100, but the assembler allocates registers worse.
    Sm100,
}

impl Class {
    /// Every class, that with the least shared memory first; of equals the oldest.
    pub const ALL: &[Class] = &[Class::Sm86, Class::Sm80, Class::Sm90, Class::Sm100];

    /// The name of its first target, on the command line too.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.targets()[0]
    }

    /// The targets, by their names for `ptxas`, that are of this class.
    #[must_use]
    pub const fn targets(self) -> &'static [&'static str] {
        match self {
            Class::Sm80 => &["sm_80"],
            Class::Sm86 => &["sm_86", "sm_89", "sm_120"],
            Class::Sm90 => &["sm_90"],
            Class::Sm100 => &["sm_100"],
        }
    }

    /// The compute capability of its first devices.
    #[must_use]
    pub const fn compute_capability(self) -> (i32, i32) {
        match self {
            Class::Sm80 => (8, 0),
            Class::Sm86 => (8, 6),
            Class::Sm90 => (9, 0),
            Class::Sm100 => (10, 0),
        }
    }

    /// What its devices have.
    #[must_use]
    pub const fn shared_memory(self) -> SharedMemory {
        let multiprocessor = match self {
            Class::Sm80 => 164 << 10,
            Class::Sm86 => 100 << 10,
            Class::Sm90 | Class::Sm100 => 228 << 10,
        };
        SharedMemory {
            block: multiprocessor - SharedMemory::RESERVED,
            multiprocessor,
        }
    }

    /// The class whose tiles suit a device: that with the most shared memory, and of equals the newest,
    /// of those which have no more than the device and are no newer; else that with the least.
    #[must_use]
    pub fn of(compute_capability: (i32, i32), device: SharedMemory) -> Class {
        let fits = |class: &&Class| {
            let needed = class.shared_memory();
            needed.block <= device.block
                && needed.multiprocessor <= device.multiprocessor
                && class.compute_capability() <= compute_capability
        };
        *Self::ALL.iter().rfind(fits).unwrap_or(&Self::ALL[0])
    }

    /// The tile of a family's kernel for a head dim, one of [`HEAD_DIMS`](crate::catalog::HEAD_DIMS) or
    /// [`WIDE_DIMS`](wide::WIDE_DIMS).
    ///
    /// # Panics
    /// If it is none of them.
    #[must_use]
    pub const fn tile(self, family: Family, head_dim: u32) -> Tile {
        match (family, self) {
            (Family::Forward { causal }, Class::Sm80) => sm80_forward(head_dim, causal),
            (Family::Forward { causal }, Class::Sm86) => sm86_forward(head_dim, causal),
            (Family::Forward { causal }, Class::Sm90) => sm90_forward(head_dim, causal),
            (Family::Forward { causal }, Class::Sm100) => sm100_forward(head_dim, causal),
            (Family::Packed, class) => packed(class, head_dim),
            (Family::Decode, Class::Sm80) => sm80_decode(head_dim),
            (Family::Decode, Class::Sm86) => sm86_decode(head_dim),
            (Family::Decode, Class::Sm90 | Class::Sm100) => sm90_decode(head_dim),
            (Family::Wide, class) => wide::tile(class, head_dim),
            (Family::Combine, _) => COMBINE_TILE,
            (Family::Pack, _) => PACK_TILE,
            (Family::Ladder(shape), _) => shape.tile(),
            (Family::Gemm { tile, .. }, _) => tile.block(),
        }
    }
}

/// Two m16 tiles a warp (`q_rows * team / warps = 32`) let every K and V fragment feed two products; O
/// then takes `head_dim / team` registers a lane, which ends at 128.
///
/// Losers, on an H200 (`docs/tuning.md`): 64: keys 32 in three blocks, -1 %; two slices of Q in registers,
/// -10 %; three, level, but spills under the mask. 128: keys 64, +6 %, but spills; no slices or four
/// without a mask, level, but spills. 256: teams of one, -9 to -15 %.
const fn sm90_forward(head_dim: u32, causal: bool) -> Tile {
    let (q_rows, keys, q_slices) = match head_dim {
        32 => (128, 64, 2),
        64 => (128, 64, 4),
        96 => (128, 32, 0),
        128 if causal => (128, 32, 0),
        128 => (128, 32, 2),
        192 => (64, 32, 12),
        256 => {
            return Tile {
                q_rows: 64,
                keys: 64,
                warps: 4,
                team: 2,
                stages: 1,
                v_slices: 1,
                q_slices: 3,
                blocks_per_sm: 2,
            };
        }
        _ => panic!("no tile for this head dim"),
    };
    Tile {
        q_rows,
        keys,
        warps: 4,
        team: 1,
        stages: 2,
        v_slices: 1,
        q_slices,
        blocks_per_sm: 2,
    }
}

/// Two blocks of the tiles of `sm_90` fit up to D = 192 (2 * 73 of 164 KB). At 256 one of 96 KB
/// does: one block of eight warps instead, each with the same work as there.
///
/// Losers, by reasoning: 256: 64 x 16 in 64 KB, two blocks, reads Q from shared memory twice as often
/// for each key, and what an A100's shared memory delivers is what bounds these tiles.
const fn sm80_forward(head_dim: u32, causal: bool) -> Tile {
    match head_dim {
        256 => Tile {
            q_rows: 128,
            keys: 32,
            warps: 8,
            team: 1,
            stages: 2,
            v_slices: 1,
            q_slices: 7,
            blocks_per_sm: 1,
        },
        _ => sm90_forward(head_dim, causal),
    }
}

/// Two blocks share 100 KB if each has 49 or less: those of `sm_90` up to D = 96, of 48 KB. But of these
/// 64 and 96 spill on `sm_120`: so three quarters of the keys at 64, half the rows at 96, with registers
/// to keep Q in. At 128 and 192 half the tile has 48 KB again. At 256 one block of eight warps, of 96
/// KB.
///
/// The tensor cores are a quarter to a half as fast as those of an A100, beside a shared memory of
/// nearly the same speed: barriers and `ldmatrix` cost less here than a warp that waits alone.
///
/// Losers, by reasoning: 64: the tile of `sm_90` with two slices of Q, which do not spill, for they cost
/// it 10 % on an H200. 128: one block of `sm_90`'s tile, four warps; 128 x 16, two blocks, reads K
/// and V half as often, but rescales O twice as often, and 64 rows fill up better. 256: `sm_90`'s
/// causal tile, one block of four warps.
const fn sm86_forward(head_dim: u32, causal: bool) -> Tile {
    let (q_rows, keys, warps, q_slices, blocks_per_sm) = match head_dim {
        64 => (128, 48, 4, 4, 2),
        96 => (64, 32, 4, 6, 2),
        128 => (64, 32, 4, 8, 2),
        192 => (64, 16, 4, 12, 2),
        256 => (128, 16, 8, 0, 1),
        _ => return sm90_forward(head_dim, causal),
    };
    Tile {
        q_rows,
        keys,
        warps,
        team: 1,
        stages: 2,
        v_slices: 1,
        q_slices,
        blocks_per_sm,
    }
}

/// Those of `sm_90` but for those that spill. At D = 128 half the keys, with registers to keep half of Q
/// in. At 256 that of `sm_86`.
///
/// Losers, by reasoning: 128: 64 x 32 with Q in registers reads a third more for each key; what
/// shared memory delivers is what bounds these tiles.
const fn sm100_forward(head_dim: u32, causal: bool) -> Tile {
    match head_dim {
        128 => Tile {
            keys: 16,
            q_slices: 4,
            ..sm90_forward(head_dim, causal)
        },
        256 => sm86_forward(head_dim, causal),
        _ => sm90_forward(head_dim, causal),
    }
}

/// Those of the causal kernels but for those that spill: which keys a row sees depends on its head too,
/// so no register serves all rows of a lane. Fewer slices of Q in registers; at D = 128 on `sm_80` half the
/// keys, as on `sm_100`, and at 256; at 256 on `sm_86` half the rows, for 8 warps would spill on `sm_120`.
const fn packed(class: Class, head_dim: u32) -> Tile {
    let causal = Family::Forward { causal: true };
    match (class, head_dim) {
        (Class::Sm80 | Class::Sm90 | Class::Sm100, 64) => Tile {
            q_slices: 3,
            ..class.tile(causal, head_dim)
        },
        (Class::Sm80 | Class::Sm100, 128) => Tile {
            q_slices: 2,
            ..sm100_forward(head_dim, true)
        },
        (Class::Sm80, 256) => sm100_forward(head_dim, true),
        (Class::Sm86, 256) => Tile {
            q_rows: 64,
            warps: 4,
            ..sm86_forward(head_dim, true)
        },
        (Class::Sm80 | Class::Sm90 | Class::Sm100, 192) => Tile {
            q_slices: 8,
            ..class.tile(causal, head_dim)
        },
        (Class::Sm90, 256) => Tile {
            q_slices: 1,
            ..sm90_forward(head_dim, true)
        },
        _ => class.tile(causal, head_dim),
    }
}

/// What counts is bytes on their way, and blocks enough to hide the latency of each other's steps, in
/// which often one warp alone has rows. All but one of a block's buffers are being filled: 72 to 144
/// KB for the blocks that fit an H100's multiprocessor.
///
/// With fewer registers 64 (64 keys, or all of Q in registers), 128 (Q in registers) and 192 (three
/// blocks) would spill; on `sm_100` 192 with all of Q in registers, too.
///
/// Losers, on an H200 (`docs/tuning.md`): 64: 64 keys in three blocks, -7 to -20 % where blocks nearly
/// fill the GPU, level elsewhere.
const fn sm90_decode(head_dim: u32) -> Tile {
    let (keys, stages, q_slices, blocks_per_sm) = match head_dim {
        32 => (64, 4, 2, 4),
        64 => (48, 4, 2, 4),
        96 => (32, 4, 6, 3),
        128 => (32, 3, 0, 3),
        192 => (32, 3, 8, 2),
        256 => (16, 4, 0, 2),
        _ => panic!("no tile for this head dim"),
    };
    decode(keys, stages, q_slices, blocks_per_sm)
}

/// An A100's multiprocessor gets half the bytes a second of an H200's, so two blocks do for three:
/// those of `sm_90` up to D = 128. Above, less is on its way: 72 and 64 KB.
const fn sm80_decode(head_dim: u32) -> Tile {
    match head_dim {
        192 => decode(16, 4, 12, 2),
        256 => decode(16, 3, 0, 2),
        _ => sm90_decode(head_dim),
    }
}

/// A multiprocessor gets about 10 bytes a nanosecond, a third of an H200's: 24 KB on their way are
/// enough. Two blocks of 49 KB or less; at D = 256 the 32 KB of Q leave room for one, that of `sm_90`.
const fn sm86_decode(head_dim: u32) -> Tile {
    match head_dim {
        64 => decode(32, 4, 4, 2),
        96 => decode(32, 3, 6, 2),
        128 => decode(16, 4, 8, 2),
        192 => decode(16, 2, 12, 2),
        _ => sm90_decode(head_dim),
    }
}

const fn decode(keys: u32, stages: u32, q_slices: u32, blocks_per_sm: u32) -> Tile {
    Tile {
        q_rows: 64,
        keys,
        warps: 4,
        team: 1,
        stages,
        v_slices: 1,
        q_slices,
        blocks_per_sm,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::HEAD_DIMS;
    extern crate std;
    use std::vec::Vec;

    /// The families of the main loop.
    const MASKS: [Family; 3] = [
        Family::Forward { causal: false },
        Family::Forward { causal: true },
        Family::Packed,
    ];

    fn resident(class: Class, family: Family, dim: u32) -> u32 {
        let tile = class.tile(family, dim);
        let shared = class.shared_memory();
        shared.resident_blocks(tile.shared_bytes(dim))
    }

    /// But for four where eight would spill.
    #[test]
    fn eight_forward_warps_share_a_multiprocessor() {
        for &class in Class::ALL {
            for (&dim, family) in HEAD_DIMS.iter().flat_map(|dim| MASKS.map(|m| (dim, m))) {
                let tile = class.tile(family, dim);
                let blocks = resident(class, family, dim);
                let warps = match (class, family, dim) {
                    (Class::Sm86, Family::Packed, 256) => 4,
                    _ => 8,
                };
                assert!(
                    tile.blocks_per_sm <= blocks && tile.blocks_per_sm * tile.warps == warps,
                    "{class:?}, {family:?}, {dim}: {blocks} blocks of {tile:?}"
                );
            }
        }
    }

    #[test]
    fn two_decode_blocks_share_a_multiprocessor() {
        for &class in Class::ALL {
            for &dim in HEAD_DIMS {
                let blocks = resident(class, Family::Decode, dim);
                let wanted = match (class, dim) {
                    (Class::Sm86, 256) => 1,
                    (Class::Sm80 | Class::Sm86, _) => 2,
                    _ => class.tile(Family::Decode, dim).blocks_per_sm,
                };
                assert!(blocks >= wanted, "{class:?}, {dim}: {blocks} blocks");
            }
        }
    }

    /// A thread copies whole columns of a tile: its rows are a multiple of those of a step.
    #[test]
    fn all_threads_copy_every_tile() {
        use crate::layout::share::Share;
        for &class in Class::ALL {
            for &dim in HEAD_DIMS {
                for family in MASKS.into_iter().chain([Family::Decode]) {
                    let tile = class.tile(family, dim);
                    let share = Share::new(0, 32 * tile.warps, dim / 8);
                    assert_eq!(tile.keys % share.rows_per_step, 0, "{tile:?} of {dim}");
                    assert_eq!(tile.q_rows % share.rows_per_step, 0, "{tile:?} of {dim}");
                }
            }
        }
    }

    #[test]
    fn blocks_cost_what_the_system_reserves() {
        let shared = Class::Sm86.shared_memory();
        for (bytes, blocks) in [(49 << 10, 2), (99 << 10, 1)] {
            assert_eq!(shared.resident_blocks(bytes), blocks);
            assert_eq!(shared.resident_blocks(bytes + 1), blocks - 1);
        }
        assert_eq!(shared.resident_blocks(0), 100);
    }

    #[test]
    fn devices_are_told_apart_by_shared_memory_and_generation() {
        let of = |compute_capability, block: u32, multiprocessor: u32| {
            let shared = SharedMemory {
                block: block << 10,
                multiprocessor: multiprocessor << 10,
            };
            Class::of(compute_capability, shared)
        };
        for &class in Class::ALL {
            let shared = class.shared_memory();
            assert_eq!(Class::of(class.compute_capability(), shared), class);
        }
        // Others of the same generation, and what is not known yet.
        assert_eq!(of((8, 7), 163, 164), Class::Sm80);
        assert_eq!(of((12, 0), 99, 100), Class::Sm86);
        assert_eq!(of((10, 3), 227, 228), Class::Sm100);
        assert_eq!(of((13, 0), 300, 400), Class::Sm100);
        assert_eq!(of((9, 9), 300, 400), Class::Sm90);
        // More than one and less than the next, or more in one respect only.
        assert_eq!(of((9, 0), 200, 201), Class::Sm80);
        assert_eq!(of((9, 0), 128, 129), Class::Sm86);
        assert_eq!(of((10, 0), 99, 228), Class::Sm86);
        assert_eq!(of((10, 0), 227, 164), Class::Sm80);
        // Older than all that it has room for, and less than all.
        assert_eq!(of((8, 0), 99, 100), Class::Sm86);
        assert_eq!(of((9, 0), 48, 64), Class::Sm86);
    }

    #[test]
    fn every_target_has_one_class() {
        let mut targets: Vec<_> = Class::ALL
            .iter()
            .flat_map(|class| class.targets())
            .collect();
        targets.sort_unstable();
        let expected = ["sm_100", "sm_120", "sm_80", "sm_86", "sm_89", "sm_90"];
        assert!(targets.into_iter().eq(&expected));
    }
}
