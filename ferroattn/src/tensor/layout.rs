//! Shapes and strides, without memory.

use crate::error::{Error, Result};

/// Positions of an `R`-dimensional tensor's elements, counted in elements from element `[0, ..]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout<const R: usize> {
    pub shape: [usize; R],
    pub strides: [isize; R],
}

/// Blocks that two layouts share, of `rows` rows of `run` elements, which lie side by side in both.
#[derive(Debug, PartialEq)]
pub struct Blocks {
    pub run: usize,
    pub rows: usize,
    /// Elements from a row to the next one, in each layout: at least a run.
    pub pitches: [usize; 2],
    /// First positions of each block.
    pub starts: Vec<[isize; 2]>,
}

impl<const R: usize> Layout<R> {
    /// The row-major layout, or `None` if the number of elements overflows.
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

    /// Checks that a row-major tensor of 16-bit elements has so few that its bytes can be counted too.
    pub fn expect_countable_bytes(argument: &'static str, shape: [usize; R]) -> Result<()> {
        let layout = Self::contiguous(shape);
        let bytes = layout.and_then(|layout| layout.len().checked_mul(size_of::<u16>()));
        let countable = bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok());
        countable.then_some(()).ok_or(Error::Overflow(argument))
    }

    /// Number of elements. Overflows unless [`contiguous`](Self::contiguous) takes the shape.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether some extent is 0.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.run_axes() == R || self.is_empty()
    }

    /// The lowest and the highest position, or `None` if one overflows. `(0, 0)` of an empty tensor.
    pub fn span(&self) -> Option<(isize, isize)> {
        let (mut low, mut high) = (0_isize, 0_isize);
        if self.is_empty() {
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

    /// Whether distinct elements certainly have distinct positions: in order of strides, every axis
    /// steps over all that the axes before it reach.
    ///
    /// It is false for some layouts without collisions, but never for a permutation or slice of a
    /// contiguous tensor.
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

    /// Checks that the layout is [injective](Self::is_injective).
    pub fn expect_injective(&self, argument: &'static str) -> Result<()> {
        if self.is_injective() {
            return Ok(());
        }
        Err(Error::Overlap {
            argument,
            strides: self.strides.to_vec(),
        })
    }

    /// Length and first positions of the runs: row-major order is one run after the other, and the
    /// elements of a run lie side by side.
    pub fn runs(&self) -> (usize, impl Iterator<Item = isize> + use<R>) {
        let Layout { shape, strides } = *self;
        let outer = R - self.run_axes();
        let position = move |mut run: usize| {
            let mut position = 0;
            for axis in (0..outer).rev() {
                position += (run % shape[axis]) as isize * strides[axis];
                run /= shape[axis];
            }
            position
        };
        let count = if self.is_empty() {
            0
        } else {
            shape[..outer].iter().product()
        };
        (shape[outer..].iter().product(), (0..count).map(position))
    }

    /// Number of last axes that are contiguous by themselves.
    fn run_axes(&self) -> usize {
        let mut run = 1_isize;
        let is_part = |axis: usize| {
            let part = self.shape[axis] == 1 || self.strides[axis] == run;
            run = run.wrapping_mul(self.shape[axis] as isize);
            part
        };
        (0..R).rev().map(is_part).take_while(|&part| part).count()
    }

    /// The blocks that this layout and another one of its shape share: rows of elements side by side, at equal distances.
    pub fn blocks_with(&self, other: &Self) -> Blocks {
        // Axes from the last one on, as one where both layouts step over it as over one.
        let mut axes: Vec<(usize, [isize; 2])> = vec![(1, [1; 2])];
        for axis in (0..R).rev().filter(|&axis| self.shape[axis] != 1) {
            let (extent, strides) = (self.shape[axis], [self, other].map(|of| of.strides[axis]));
            let (inner, steps) = axes.last_mut().expect("the run's");
            match steps.map(|step| step * *inner as isize) == strides {
                true => *inner *= extent,
                false => axes.push((extent, strides)),
            }
        }
        let (run, _) = axes.remove(0);
        let pitched = |(_, steps): &&(usize, [isize; 2])| steps.iter().all(|&s| s >= run as isize);
        let (rows, pitches) = match axes.first().filter(pitched) {
            Some(_) => axes.remove(0),
            None => (1, [run as isize; 2]),
        };
        let mut starts = vec![[0; 2]];
        for (extent, steps) in axes {
            let of_axis = |start: &[isize; 2]| {
                let [a, b] = *start;
                (0..extent as isize).map(move |i| [a + i * steps[0], b + i * steps[1]])
            };
            starts = starts.iter().flat_map(of_axis).collect();
        }
        Blocks {
            run,
            rows,
            pitches: pitches.map(|pitch| pitch as usize),
            starts,
        }
    }

    /// The layout of the same elements, in row-major order, in another shape of as many elements;
    /// `None` if no strides give it.
    pub fn reshape<const N: usize>(&self, shape: [usize; N]) -> Option<Layout<N>> {
        if self.is_empty() {
            return Layout::contiguous(shape);
        }
        // From the last axis to the first: steps of `stride`, `left` of which are not yet used.
        let mut axes = (0..R).rev().filter(|&axis| self.shape[axis] > 1).peekable();
        let (mut left, mut stride) = (1, 1_isize);
        let mut strides = [1; N];
        for axis in (0..N).rev() {
            if left == 1 && shape[axis] > 1 {
                let first = axes.next()?;
                (left, stride) = (self.shape[first], self.strides[first]);
                // Axes that continue each other are one.
                while let Some(&next) = axes.peek()
                    && self.strides[next] == stride.wrapping_mul(left as isize)
                {
                    left *= self.shape[next];
                    axes.next();
                }
            }
            strides[axis] = stride;
            if !left.is_multiple_of(shape[axis]) {
                return None;
            }
            left /= shape[axis];
            stride = stride.wrapping_mul(shape[axis] as isize);
        }
        Some(Layout { shape, strides })
    }

    /// The layout of a shape that repeats the elements: with more axes before, and with any extent
    /// in place of 1. `None` if another extent differs.
    pub fn broadcast<const N: usize>(&self, shape: [usize; N]) -> Option<Layout<N>> {
        let added = N.checked_sub(R)?;
        let mut strides = [0; N];
        for axis in 0..R {
            let to = shape[added + axis];
            strides[added + axis] = match self.shape[axis] {
                from if from == to => self.strides[axis],
                1 => 0,
                _ => return None,
            };
        }
        Some(Layout { shape, strides })
    }
}

#[cfg(test)]
mod tests {
    use super::{Blocks, Layout};

    #[test]
    fn contiguous_is_row_major() {
        let layout = Layout::contiguous([2, 3, 4]).unwrap();
        assert_eq!(layout.strides, [12, 4, 1]);
        assert_eq!(layout.span(), Some((0, 23)));
        assert!(layout.is_contiguous());
        assert_eq!(layout.len(), 24);
    }

    #[test]
    fn overflow_is_noticed() {
        for shape in [[usize::MAX, 2], [1 << 62, 2], [usize::MAX, 0]] {
            assert_eq!(Layout::contiguous(shape), None);
        }
        let countable = |shape| Layout::expect_countable_bytes("q", shape).is_ok();
        assert!(countable([1 << 30, 1 << 31]));
        assert!(countable([usize::MAX / 2, 0]));
        for shape in [[1 << 31, 1 << 31], [1 << 62, 1], [1 << 62, 2]] {
            assert!(!countable(shape), "{shape:?}");
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
        assert!(layout.is_injective() && !layout.is_contiguous());
        let (run, starts) = layout.runs();
        assert_eq!((run, starts.collect()), (3, vec![0, -3]));
    }

    #[test]
    fn runs_are_as_long_as_they_can_be() {
        let runs = |shape: [usize; 3], strides: [isize; 3]| {
            let layout = Layout { shape, strides };
            let (run, starts) = layout.runs();
            assert_eq!(layout.is_contiguous(), starts.size_hint().0 <= 1);
            (run, starts.collect::<Vec<_>>())
        };
        assert_eq!(runs([2, 3, 4], [12, 4, 1]), (24, vec![0]));
        assert_eq!(runs([2, 3, 4], [15, 4, 1]), (12, vec![0, 15]));
        assert_eq!(runs([2, 1, 4], [4, 99, 1]), (8, vec![0]));
        assert_eq!(
            runs([2, 2, 2], [4, 2, -1]),
            (1, vec![0, -1, 2, 1, 4, 3, 6, 5])
        );
        assert_eq!(runs([2, 2, 1], [0, 1, 7]), (2, vec![0, 0]));
        assert_eq!(runs([1, 1, 1], [5, 5, 5]), (1, vec![0]));
        assert_eq!(runs([2, 0, 4], [7, 7, 7]).1, []);
    }

    /// Blocks hold each pair of positions once, and one token of a cache is one block.
    #[test]
    fn blocks_are_what_two_layouts_share() {
        let row_major = |shape: [usize; 4]| Layout::contiguous(shape).expect("small");
        let token = Layout {
            shape: [2, 3, 1, 8],
            strides: [3 * 100 * 8, 100 * 8, 8, 1],
        };
        let expected = Blocks {
            run: 8,
            rows: 6,
            pitches: [800, 8],
            starts: vec![[0, 0]],
        };
        assert_eq!(token.blocks_with(&row_major([2, 3, 1, 8])), expected);
        let turned = |shape, strides| Layout { shape, strides };
        for (a, b) in [
            (row_major([2, 3, 4, 5]), turned([2, 3, 4, 5], [1, 2, 6, 24])),
            (
                turned([2, 3, 4, 5], [-60, 20, 5, 1]),
                row_major([2, 3, 4, 5]),
            ),
            (
                turned([2, 3, 4, 5], [0, 0, 0, 1]),
                turned([2, 3, 4, 5], [7, 50, 0, 1]),
            ),
            (turned([1, 1, 1, 1], [9, 9, 9, 9]), row_major([1, 1, 1, 1])),
            (
                row_major([2, 3, 4, 5]),
                turned([2, 3, 4, 5], [120, 40, 10, 2]),
            ),
        ] {
            let blocks = a.blocks_with(&b);
            let mut found = Vec::new();
            for start in &blocks.starts {
                for (row, i) in (0..blocks.rows).flat_map(|r| (0..blocks.run).map(move |i| (r, i)))
                {
                    let place =
                        |side: usize| start[side] + (row * blocks.pitches[side] + i) as isize;
                    found.push((place(0), place(1)));
                }
            }
            found.sort_unstable();
            let mut pairs: Vec<_> = positions(&a).into_iter().zip(positions(&b)).collect();
            pairs.sort_unstable();
            assert_eq!(found, pairs, "{a:?} {b:?}");
        }
    }

    /// Every position of the elements, in row-major order.
    fn positions<const R: usize>(layout: &Layout<R>) -> Vec<isize> {
        let (run, starts) = layout.runs();
        starts
            .flat_map(|start| start..start + run as isize)
            .collect()
    }

    #[test]
    fn reshapes_keep_the_order_of_elements() {
        let shapes = [
            [2, 3, 4],
            [4, 6, 1],
            [1, 24, 1],
            [6, 2, 2],
            [1, 1, 24],
            [8, 3, 1],
            [3, 2, 4],
        ];
        for strides in [
            [12, 4, 1],
            [24, 4, 1],
            [15, 5, 1],
            [1, 2, 6],
            [-12, -4, -1],
            [0, 4, 1],
            [0, 0, 0],
        ] {
            let layout = Layout {
                shape: [2, 3, 4],
                strides,
            };
            let elements = positions(&layout);
            for shape in shapes {
                // The only strides that can give the shape, by the second index of each axis.
                let mut strides = [1; 3];
                let mut step = 1;
                for axis in (0..3).rev() {
                    strides[axis] = elements.get(step).map_or(0, |next| next - elements[0]);
                    step *= shape[axis];
                }
                let wanted = positions(&Layout { shape, strides });
                match layout.reshape(shape) {
                    Some(reshaped) => assert_eq!(positions(&reshaped), elements, "{layout:?}"),
                    None => assert_ne!(wanted, elements, "{layout:?} as {shape:?}"),
                }
            }
        }
        let split = Layout {
            shape: [5, 6],
            strides: [18, 1],
        }
        .reshape([5, 1, 3, 2]);
        assert_eq!(split.map(|layout| layout.strides), Some([18, 6, 2, 1]));
        let of_one = Layout {
            shape: [1],
            strides: [9],
        }
        .reshape([]);
        assert_eq!(of_one.map(|layout| layout.len()), Some(1));
        let empty = Layout {
            shape: [3, 0],
            strides: [5, 5],
        }
        .reshape([0, 7, 8]);
        assert_eq!(empty, Layout::contiguous([0, 7, 8]));
    }

    #[test]
    fn broadcasts_repeat_extents_of_one() {
        let layout = Layout {
            shape: [2, 1],
            strides: [3, 7],
        };
        let strides = |shape: [usize; 3]| layout.broadcast(shape).map(|layout| layout.strides);
        assert_eq!(strides([4, 2, 5]), Some([0, 3, 0]));
        assert_eq!(strides([4, 2, 1]), Some([0, 3, 7]));
        assert_eq!(strides([4, 3, 5]), None);
        assert_eq!(layout.broadcast([2]), None);
    }

    /// Against a search for two elements at one position: where there are, no layout is injective.
    #[test]
    fn injective_layouts_do_not_collide() {
        let mut injective = 0;
        for strides in (0..7_isize.pow(3)).map(|n| [n % 7 - 3, n / 7 % 7 - 3, n / 49 - 3]) {
            for shape in [[1, 2, 3], [2, 2, 2], [3, 1, 2], [1, 1, 1]] {
                let layout = Layout { shape, strides };
                let mut positions = positions(&layout);
                positions.sort_unstable();
                let collides = positions.windows(2).any(|pair| pair[0] == pair[1]);
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
