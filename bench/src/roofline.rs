//! Peak rates of devices.

/// Rates of dense f16 matrix products with f32 accumulation, in TFLOP/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// The datasheet's.
    pub dense: f64,
    /// The peak of `mma.sync`, if lower: Hopper's full rate needs `wgmma`.
    pub mma_sync: Option<f64>,
}

const HOPPER_SXM: Roofline = Roofline {
    dense: 989.0,
    // The rate at which `ncu` shows an H200's tensor pipe 100 % busy (`docs/tuning.md`).
    mma_sync: Some(650.0),
};

/// Rooflines by marketing name.
const DEVICES: &[(&str, Roofline)] = &[
    ("NVIDIA H200", HOPPER_SXM),
    ("NVIDIA H100 80GB HBM3", HOPPER_SXM),
    (
        "NVIDIA A100",
        Roofline {
            dense: 312.0,
            mma_sync: None,
        },
    ),
];

/// The roofline of a device, by the beginning of its name.
pub fn find(device: &str) -> Option<Roofline> {
    let known = DEVICES.iter().find(|(name, _)| device.starts_with(name));
    known.map(|(_, roofline)| *roofline)
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn devices_go_by_their_names() {
        assert_eq!(find("NVIDIA A100-SXM4-80GB").map(|r| r.dense), Some(312.0));
        assert_eq!(find("NVIDIA H100 PCIe"), None);
    }
}
