//! The one NaN that arithmetic produces.

/// The bits of a result: any NaN becomes the one that arithmetic produces. A compiler may change the
/// payload of a NaN, so this works on bits.
#[inline(always)]
pub(crate) fn canonical_bits(x: f32) -> u32 {
    let bits = x.to_bits();
    if bits << 1 > 0xff << 24 {
        0x7fff_ffff
    } else {
        bits
    }
}

/// The bits of a result in f64: any NaN becomes the one that arithmetic produces.
pub(crate) fn canonical_bits_64(x: f64) -> u64 {
    if x.is_nan() {
        0x7fff_ffff_ffff_ffff
    } else {
        x.to_bits()
    }
}
