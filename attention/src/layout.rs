//! Shapes and strides of a tensor, with no memory behind them.

/// Where the elements of an `R`-dimensional tensor lie, counted in elements from element `[0, ..]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout<const R: usize> {
    pub shape: [usize; R],
    pub strides: [isize; R],
}

impl<const R: usize> Layout<R> {
    /// Row-major, or `None` if the number of elements overflows.
    pub fn contiguous(shape: [usize; R]) -> Option<Self> {
        let mut strides = [1; R];
        let mut stride = 1_usize;
        for axis in (0..R).rev() {
            strides[axis] = isize::try_from(stride).ok()?;
            stride = stride.checked_mul(shape[axis].max(1))?;
        }
        isize::try_from(stride).ok()?;
        Some(Layout { shape, strides })
    }

    /// Whether a row-major tensor of 16-bit elements has so few that its bytes can be counted too.
    pub fn has_countable_bytes(shape: [usize; R]) -> bool {
        Self::contiguous(shape)
            .and_then(|layout| layout.len().checked_mul(size_of::<u16>()))
            .is_some_and(|bytes| isize::try_from(bytes).is_ok())
    }

    /// Number of elements; for layouts whose [`span`](Self::span) exists or is contiguous.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        Self::contiguous(self.shape).is_some_and(|row_major| {
            (0..R)
                .all(|axis| self.shape[axis] <= 1 || self.strides[axis] == row_major.strides[axis])
        })
    }

    /// The lowest and the highest index, or `None` if one overflows.
    ///
    /// An empty tensor spans index 0, like one of one element.
    pub fn span(&self) -> Option<(isize, isize)> {
        let (mut low, mut high) = (0_isize, 0_isize);
        if self.shape.contains(&0) {
            return Some((0, 0));
        }
        for (&extent, &stride) in self.shape.iter().zip(&self.strides) {
            let reach = isize::try_from(extent - 1).ok()?.checked_mul(stride)?;
            if reach < 0 {
                low = low.checked_add(reach)?;
            } else {
                high = high.checked_add(reach)?;
            }
        }
        Some((low, high))
    }

    /// Whether distinct elements certainly have distinct indices: ordered by stride, every axis
    /// steps over all that the axes below it reach.
    ///
    /// Layouts that interleave axes without colliding exist and are not recognised; no permutation
    /// or slice of a contiguous tensor is one.
    pub fn is_injective(&self) -> bool {
        let mut axes: Vec<(usize, usize)> = (0..R)
            .filter(|&axis| self.shape[axis] > 1)
            .map(|axis| (self.strides[axis].unsigned_abs(), self.shape[axis]))
            .collect();
        axes.sort_unstable();
        let mut reach = 0_usize;
        axes.into_iter().all(|(stride, extent)| {
            let steps_over = stride > reach;
            reach = reach.saturating_add(stride.saturating_mul(extent - 1));
            steps_over
        })
    }

    /// The index of every element, in row-major order of the shape.
    pub fn indices(&self) -> impl Iterator<Item = isize> + use<R> {
        let Layout { shape, strides } = *self;
        (0..self.len()).map(move |mut element| {
            let mut index = 0;
            for axis in (0..R).rev() {
                index += (element % shape[axis]) as isize * strides[axis];
                element /= shape[axis];
            }
            index
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Layout;

    #[test]
    fn contiguous_is_row_major() {
        let layout = Layout::contiguous([2, 3, 4]).unwrap();
        assert_eq!(layout.strides, [12, 4, 1]);
        assert_eq!(layout.span(), Some((0, 23)));
        assert!(layout.is_contiguous());
        assert!(layout.indices().eq(0..24));
    }

    #[test]
    fn overflow_is_noticed() {
        assert_eq!(Layout::contiguous([usize::MAX, 2]), None);
        assert_eq!(Layout::contiguous([1 << 62, 2]), None);
        assert!(Layout::has_countable_bytes([1 << 30, 1 << 31]));
        assert!(Layout::has_countable_bytes([usize::MAX / 2, 0]));
        for shape in [[1 << 31, 1 << 31], [1 << 62, 1], [1 << 62, 2]] {
            assert!(!Layout::has_countable_bytes(shape), "{shape:?}");
        }
        let far = Layout {
            shape: [3, 3],
            strides: [isize::MAX / 2, isize::MAX / 2],
        };
        assert_eq!(far.span(), None);
    }

    #[test]
    fn negative_strides_reach_below() {
        let layout = Layout {
            shape: [2, 3],
            strides: [-3, 1],
        };
        assert_eq!(layout.span(), Some((-3, 2)));
        assert!(layout.is_injective());
        assert!(layout.indices().eq([0, 1, 2, -3, -2, -1]));
    }

    /// Against a brute-force search for two elements with one index: never injective when one
    /// exists.
    #[test]
    fn injective_layouts_do_not_collide() {
        let mut injective = 0;
        for strides in (0..7_isize.pow(3)).map(|n| [n % 7 - 3, n / 7 % 7 - 3, n / 49 - 3]) {
            for shape in [[1, 2, 3], [2, 2, 2], [3, 1, 2], [1, 1, 1]] {
                let layout = Layout { shape, strides };
                let mut indices: Vec<isize> = layout.indices().collect();
                indices.sort_unstable();
                let collides = indices.windows(2).any(|pair| pair[0] == pair[1]);
                assert!(!(collides && layout.is_injective()), "{layout:?}");
                injective += usize::from(layout.is_injective());
            }
        }
        assert!(injective > 300, "only {injective} found injective");
    }

    #[test]
    fn permuted_and_sliced_layouts_are_injective() {
        let permuted = Layout {
            shape: [2, 8, 5, 16],
            strides: [5 * 8 * 24, 24, 8 * 24, 1],
        };
        assert!(permuted.is_injective());
        let broadcast = Layout {
            shape: [2, 8],
            strides: [0, 1],
        };
        assert!(!broadcast.is_injective());
    }
}
