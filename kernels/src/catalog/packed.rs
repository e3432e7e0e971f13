//! Query heads that share a key/value head share query tiles: the tiles of each class.

use super::class::Class;
use super::{Tile, plain};

/// The causal kernels' tiles where these do not spill: which keys a row sees depends on its head too, so
/// no register serves all rows of a lane. Fewer slices of Q in registers; half the keys at D = 128 and 256
/// on `sm_80`, as on `sm_100`; half the rows at 256 on `sm_86`, since 8 warps would spill on `sm_120`.
pub(super) fn tile(class: Class, dim: u32) -> Tile {
    let causal = |class| plain::tile(class, dim, true);
    let keeping = |class, q_slices| Tile {
        q_slices,
        ..causal(class)
    };
    match (class, dim) {
        (Class::Sm86, 256) => Tile {
            q_rows: 64,
            warps: 4,
            ..causal(class)
        },
        (Class::Sm86, _) => causal(class),
        (_, 64) => keeping(class, 3),
        (Class::Sm80 | Class::Sm100, 128) => keeping(Class::Sm100, 2),
        (_, 192) => keeping(class, 8),
        (Class::Sm80, 256) => causal(Class::Sm100),
        (Class::Sm90, 256) => keeping(class, 1),
        _ => causal(class),
    }
}
