//! What a launch asks of the CUDA driver beside its grid: clusters, and an early start.

use cudarc::driver::sys::{
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue_union__bindgen_ty_1,
};

/// The attributes of a launch; none of one without clusters that is not early.
pub(super) struct Attributes {
    all: [CUlaunchAttribute; 2],
    count: usize,
}

impl Attributes {
    /// Those of a launch whose clusters have so many blocks, and which may be early: it may begin when each block of the launch
    /// before has allowed it, or ended.
    pub fn new(cluster: u32, is_early: bool) -> Self {
        // SAFETY: attributes are plain data, and zeros are numbers of each of their fields.
        let mut attributes: Self = unsafe { std::mem::zeroed() };
        if cluster > 1 {
            let attribute =
                attributes.add(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
            attribute.value.clusterDim = CUlaunchAttributeValue_union__bindgen_ty_1 {
                x: cluster,
                y: 1,
                z: 1,
            };
        }
        if is_early {
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes
                .add(id)
                .value
                .programmaticStreamSerializationAllowed = 1;
        }
        attributes
    }

    /// One more attribute, without its value.
    fn add(&mut self, id: CUlaunchAttributeID) -> &mut CUlaunchAttribute {
        let attribute = &mut self.all[self.count];
        attribute.id = id;
        self.count += 1;
        attribute
    }

    /// The attributes.
    pub fn as_mut_slice(&mut self) -> &mut [CUlaunchAttribute] {
        &mut self.all[..self.count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_what_a_launch_needs() {
        let ids = |cluster, is_early| {
            let mut attributes = Attributes::new(cluster, is_early);
            let ids = attributes.as_mut_slice().iter().map(|one| one.id);
            ids.collect::<Vec<_>>()
        };
        let clusters = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let early = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        assert_eq!(ids(1, false), []);
        assert_eq!(ids(1, true), [early]);
        assert_eq!(ids(16, false), [clusters]);
        assert_eq!(ids(2, true), [clusters, early]);
    }
}
