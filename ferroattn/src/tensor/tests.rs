use super::{Tensor, TensorView, TensorViewMut};
use crate::device::Device;
use crate::error::{Error, Result};
use ::emulator::Options;
use half::f16;

/// `[2, 3, 4]`, each element its own position.
fn counting() -> Tensor<usize, 3> {
    let data: Vec<usize> = (0..24).collect();
    Tensor::new(&Device::cpu(), [2, 3, 4], &data).expect("as many as the shape has")
}

#[test]
fn data_must_fill_the_shape() {
    let error = Tensor::new(&Device::cpu(), [2, 3], &[0_u8; 5]).expect_err("one too few");
    let (expected, found) = (6, 5);
    let shape = vec![2, 3];
    assert_eq!(
        error,
        Error::Length {
            shape,
            expected,
            found
        }
    );
}

#[test]
fn sizes_that_overflow_are_refused() {
    let overflows = |error: Option<Error>| {
        assert_eq!(error, Some(Error::Overflow("tensor")));
    };
    let cpu = Device::cpu();
    overflows(Tensor::<u8, 2>::zeros(&cpu, [1 << 32; 2]).err());
    overflows(Tensor::<u8, 3>::zeros(&cpu, [0, 1 << 32, 1 << 32]).err());
    let buffer = cpu.upload(&[0_u8]).expect("memory");
    overflows(TensorView::from_buffer(&buffer, 0, [1 << 32; 2], [0, 0]).err());
    let one = TensorView::from_buffer(&buffer, 0, [1], [1]).expect("inside");
    overflows(one.broadcast([usize::MAX, 2]).err());
    overflows(one.reshape([usize::MAX, 2]).err());
    let error = Tensor::<u64, 1>::zeros(&cpu, [1 << 62]).expect_err("2^65 bytes");
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
}

#[test]
fn views_stay_inside_their_buffer() {
    let buffer = Device::cpu()
        .upload(&[0_u8, 1, 2, 3, 4, 5])
        .expect("memory");
    let view = |offset, shape, strides| TensorView::from_buffer(&buffer, offset, shape, strides);
    let inside = [
        (0, [2, 3], [3, 1]),
        (5, [2, 3], [-3, -1]),
        (2, [2, 3], [-2, 1]),
        (6, [0, 3], [1, 1]),
        (0, [0, 3], [isize::MIN, isize::MAX]),
    ];
    for (offset, shape, strides) in inside {
        let found = view(offset, shape, strides);
        assert!(found.is_ok(), "{offset} {shape:?} {strides:?}");
    }
    let outside = [
        (1, [2, 3], [3, 1]),
        (4, [2, 3], [-3, -1]),
        (6, [1, 1], [1, 1]),
        (7, [0, 3], [1, 1]),
        (0, [2, 2], [isize::MAX, isize::MAX]),
        (0, [2, 1], [isize::MIN, 1]),
        (usize::MAX, [2, 2], [1, 1]),
    ];
    for (offset, shape, strides) in outside {
        let refused = matches!(view(offset, shape, strides), Err(Error::OutOfBounds { .. }));
        assert!(refused, "{offset} {shape:?} {strides:?}");
    }
}

#[test]
fn elements_are_read_in_row_major_order() {
    let buffer = Device::cpu().upload(&[0, 1, 2, 3, 4, 5]).expect("memory");
    let view = |offset, strides| {
        let view = TensorView::from_buffer(&buffer, offset, [2, 2], strides);
        view.expect("inside").to_vec()
    };
    assert_eq!(view(1, [2, 1]), Ok(vec![1, 2, 3, 4]));
    assert_eq!(view(5, [-3, 0]), Ok(vec![5, 5, 2, 2]));
    assert_eq!(view(3, [1, -3]), Ok(vec![3, 0, 4, 1]));
}

/// Every chain of layout changes finds the elements that index arithmetic finds.
#[test]
fn layouts_compose() {
    let tensor = counting();
    let part = tensor
        .view()
        .narrow(2, 1, 2)
        .and_then(|t| t.narrow(1, 2, 1))
        .expect("inside");
    assert_eq!((part.shape(), part.offset()), ([2, 1, 2], 9));
    assert_eq!(part.to_vec(), Ok(vec![9, 10, 21, 22]));
    let turned = tensor.view().permute([2, 0, 1]).expect("a permutation");
    assert_eq!((turned.shape(), turned.strides()), ([4, 2, 3], [1, 12, 4]));
    let row: TensorView<_, 2> = turned.select(0, 3).expect("inside");
    assert_eq!(row.to_vec(), Ok(vec![3, 7, 11, 15, 19, 23]));
    let column: TensorView<_, 1> = row
        .transpose(0, 1)
        .and_then(|t| t.select(1, 1))
        .expect("inside");
    assert_eq!(column.to_vec(), Ok(vec![15, 19, 23]));
    let repeated = column
        .reshape([3, 1])
        .and_then(|t| t.broadcast([3, 2]))
        .expect("repeated");
    assert_eq!(repeated.to_vec(), Ok(vec![15, 15, 19, 19, 23, 23]));
    let owned = counting()
        .select(0, 1)
        .and_then(|t| t.reshape([2, 6]))
        .expect("contiguous");
    assert_eq!(owned.to_vec(), Ok((12..24).collect()));
}

#[test]
fn wrong_axes_and_ranges_are_named() {
    let tensor = counting();
    let view = tensor.view();
    let axis = |axis| Some(Error::Axis { axis, axes: 3 });
    assert_eq!(view.narrow(3, 0, 1).err(), axis(3));
    assert_eq!(view.select(9, 0).err(), axis(9));
    assert_eq!(view.transpose(0, 4).err(), axis(4));
    let range = |start, len| {
        let (axis, extent) = (1, 3);
        Some(Error::Range {
            axis,
            extent,
            start,
            len,
        })
    };
    assert_eq!(view.narrow(1, 2, 2).err(), range(2, 2));
    assert_eq!(view.narrow(1, usize::MAX, 2).err(), range(usize::MAX, 2));
    assert_eq!(view.select(1, 3).err(), range(3, 1));
    for axes in [[0, 0, 1], [0, 1, 3]] {
        assert_eq!(
            view.permute(axes).err(),
            Some(Error::Axes {
                axes: axes.to_vec()
            })
        );
    }
    let error = view.reshape([5, 5]).expect_err("25 elements");
    assert!(
        matches!(
            error,
            Error::Length {
                expected: 25,
                found: 24,
                ..
            }
        ),
        "{error}"
    );
    let error = view
        .transpose(0, 1)
        .and_then(|t| t.reshape([24]))
        .expect_err("a copy");
    assert!(matches!(error, Error::Reshape { .. }), "{error}");
    let error = view.broadcast([2, 3, 5]).expect_err("an extent of 4");
    assert!(matches!(error, Error::Broadcast { .. }), "{error}");
}

#[test]
fn empty_tensors_stay_inside_their_buffer() {
    let tensor = counting();
    for (axis, extent) in [2, 3, 4].into_iter().enumerate() {
        let none = tensor
            .view()
            .narrow(axis, extent, 0)
            .expect("the end of the axis");
        assert!(none.is_empty() && none.offset() <= 24);
        assert_eq!(none.to_vec(), Ok(vec![]));
        assert_eq!(
            none.reshape([0, 5]).and_then(|none| none.to_vec()),
            Ok(vec![])
        );
        assert_eq!(none.try_clone().expect("no memory").shape(), none.shape());
    }
    let buffer = Device::cpu().upload::<u8>(&[]).expect("no memory");
    let none = TensorView::from_buffer(&buffer, 0, [3, 0], [isize::MAX, -5]).expect("empty");
    let none = none.narrow(0, 2, 1).expect("inside");
    assert!(none.is_contiguous() && none.offset() == 0);
}

#[test]
fn copies_write_the_view_and_nothing_else() {
    let mut tensor = counting();
    let source = Tensor::new(&Device::cpu(), [2, 2, 1], &[100, 101, 102, 103]).expect("four");
    let mut part = tensor
        .view_mut()
        .narrow(1, 0, 2)
        .and_then(|t| t.narrow(2, 3, 1))
        .expect("inside");
    part.copy_from(&source).expect("the same shape");
    let mut expected: Vec<usize> = (0..24).collect();
    for (position, value) in [(3, 100), (7, 101), (15, 102), (19, 103)] {
        expected[position] = value;
    }
    assert_eq!(tensor.to_vec(), Ok(expected));

    let mut backwards = [0; 6];
    let buffer = &mut Device::cpu().upload(&backwards).expect("memory");
    let mut view = TensorViewMut::from_buffer(buffer, 5, [3, 2], [-2, -1]).expect("inside");
    let source = Tensor::new(&Device::cpu(), [3, 2], &[1, 2, 3, 4, 5, 6]).expect("six");
    view.copy_from(&source).expect("the same shape");
    backwards = [6, 5, 4, 3, 2, 1];
    assert_eq!(buffer.to_vec(), Ok(backwards.to_vec()));
}

#[test]
fn copies_are_checked() {
    let mut tensor = counting();
    let error = tensor.copy_from(&counting().transpose(0, 1).expect("axes"));
    assert!(
        matches!(
            error,
            Err(Error::Shape {
                argument: "source",
                ..
            })
        ),
        "{error:?}"
    );
    let mut row = Tensor::new(&Device::cpu(), [1, 4], &[0; 4]).expect("four");
    let mut repeated = row.view_mut().broadcast([2, 4]).expect("repeated");
    let error = repeated.copy_from(&Tensor::zeros(&Device::cpu(), [2, 4]).expect("memory"));
    assert!(
        matches!(
            error,
            Err(Error::Overlap {
                argument: "tensor",
                ..
            })
        ),
        "{error:?}"
    );
}

#[test]
fn raw_tensors_start_at_the_first_element() {
    let mut tensor = Tensor::new(&Device::cpu(), [2, 3, 4, 8], &[0_u16; 192]).expect("memory");
    let (start, part) = (
        tensor.address(),
        tensor.view().narrow(2, 1, 2).expect("inside"),
    );
    let raw = part.as_raw();
    assert_eq!((raw.address, raw.shape), (start + 16, [2, 3, 2, 8]));
    assert_eq!(raw.strides, [96, 32, 8, 1]);
    assert_eq!(tensor.as_raw_mut().address, start);
    let turned = tensor.view().transpose(2, 3).expect("axes").as_raw();
    let error = turned.expect_rows("q", "dim").expect_err("a stride of 8");
    assert_eq!(error.to_string(), "q has stride 8 in dim; it must be 1");
}

/// On every kind of device there is without a GPU.
fn devices() -> Vec<Device> {
    let emulator = match Device::emulator(Options::default()) {
        Err(Error::NotCompiled) => None,
        device => Some(device.expect("an emulated GPU")),
    };
    emulator.into_iter().chain([Device::cpu()]).collect()
}

#[test]
fn sizes_that_no_device_has_are_refused() {
    for device in devices() {
        for bytes in [(1 << 39) + 1, 1 << 45, 1 << 62] {
            let error = Tensor::<u8, 1>::zeros(&device, [bytes]).expect_err("too large");
            let (name, needed) = (device.name(), bytes as u64);
            let named = matches!(&error, Error::OutOfMemory { device, needed: found, .. }
                if device == name && *found == needed);
            assert!(named, "{error:?}");
        }
        let error = Tensor::<u64, 1>::zeros(&device, [1 << 62]).expect_err("2^65 bytes");
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
    }
}

/// Pieces of zeros meet at their ends.
#[test]
fn zeros_are_all_there() {
    for device in devices() {
        let zeros = Tensor::<u8, 1>::zeros(&device, [(3 << 16) + 5]).expect("memory");
        assert!(zeros.to_vec().expect("memory").iter().all(|&x| x == 0));
    }
}

#[test]
fn debug_output_has_no_elements() {
    for device in devices() {
        let tensor = Tensor::new(&device, [2, 300], &[123.5_f32; 600]).expect("memory");
        let view = tensor.view().transpose(0, 1).expect("axes");
        let shown = format!("{view:?}");
        for part in ["[300, 2]", "[1, 300]", "f32", device.name()] {
            assert!(shown.contains(part), "{shown} has no {part}");
        }
        assert!(!shown.contains("123.5") && shown.len() < 200, "{shown}");
        let halves = device.upload(&[f16::ONE]).expect("memory");
        let shown = format!("Buffer {{ dtype: f16, len: 1, device: {} }}", device.name());
        assert_eq!(format!("{halves:?}"), shown);
    }
}

/// Slices, vectors and parts of other lengths, places that are shared, axes that are not there.
#[test]
fn memory_of_the_host_is_checked() {
    let wrong = Error::Length {
        shape: vec![2, 2],
        expected: 4,
        found: 3,
    };
    let mut three = [1, 2, 3];
    assert_eq!(
        Tensor::from_vec([2, 2], three.to_vec()).err(),
        Some(wrong.clone())
    );
    assert_eq!(
        Tensor::from_slice([2, 2], &three).err(),
        Some(wrong.clone())
    );
    assert_eq!(
        Tensor::from_slice_mut([2, 2], &mut three).err(),
        Some(wrong.clone())
    );
    let overflow = Tensor::from_slice([usize::MAX, 2], &three);
    assert_eq!(overflow.err(), Some(Error::Overflow("tensor")));

    let mut tensor = Tensor::from_vec([2, 2], vec![1, 2, 3, 4]).expect("valid");
    assert_eq!(tensor.copy_from_slice(&three), Err(wrong));
    for (axis, at) in [(2, 0), (0, 3), (1, usize::MAX)] {
        assert!(tensor.split_mut(axis, at).is_err(), "{axis} {at}");
    }
    let mut repeated = tensor.view_mut().broadcast([3, 2, 2]).expect("a new axis");
    let shared = repeated.split_mut(0, 1).expect_err("shared places");
    assert!(matches!(shared, Error::Overlap { .. }), "{shared}");
    assert_eq!(tensor.as_slice(), Some(&[1, 2, 3, 4][..]));
}

/// Parts that lie between each other, written in turns, through copies and slices, on each device.
#[test]
fn parts_are_written_in_turns() -> Result<()> {
    let emulator = Device::emulator(::emulator::Options::default());
    for device in [Some(Device::cpu()), emulator.ok()].into_iter().flatten() {
        let mut tensor = Tensor::zeros(&device, [3, 4])?;
        let [mut left, mut right] = tensor.split_mut(1, 1)?;
        right.copy_from_slice(&[2, 3, 4, 6, 7, 8, 10, 11, 12])?;
        left.copy_from_slice(&[1, 5, 9])?;
        let [_, mut last] = right.split_mut(1, 2)?;
        last.copy_from(&Tensor::new(&device, [3, 1], &[-4, -8, -12])?)?;
        assert_eq!(left.to_vec()?, [1, 5, 9]);
        assert!(left.as_slice().is_none(), "it has gaps");
        let [empty, all] = tensor.split_mut(0, 0)?;
        assert_eq!((empty.len(), all.len()), (0, 12));
        let expected = [1, 2, 3, -4, 5, 6, 7, -8, 9, 10, 11, -12];
        assert_eq!(tensor.to_vec()?, expected);
        assert_eq!(tensor.as_slice().is_some(), device.is_cpu());
    }
    Ok(())
}

/// Slices of one part stay borrowed while others, which lie around them, are read and written.
#[test]
fn parts_are_borrowed_beside_each_other() -> Result<()> {
    let mut tensor = Tensor::from_vec([3, 4], (0..12).collect())?;
    let [mut left, mut right] = tensor.split_mut(1, 1)?;
    let [_, mut below] = right.split_mut(0, 1)?;
    let [mut row, _] = below.split_mut(0, 1)?;
    let row = row.as_mut_slice().expect("a row");
    assert_eq!(left.to_vec()?, [0, 4, 8]);
    assert!(left.as_slice().is_none() && left.as_mut_slice().is_none());
    left.copy_from_slice(&[-1, -5, -9])?;
    row[1] = 66;
    assert_eq!(left.to_vec()?, [-1, -5, -9]);
    assert_eq!(row, [5, 66, 7]);
    assert_eq!(tensor.to_vec()?, [-1, 1, 2, 3, -5, 5, 66, 7, -9, 9, 10, 11]);
    Ok(())
}

/// Elements of the host's owner, where they lie.
#[test]
fn slices_are_used_in_place() -> Result<()> {
    let mut elements = [1, 2, 3, 4, 5, 6];
    let first = elements.as_ptr();
    let mut tensor = Tensor::from_slice_mut([2, 3], &mut elements)?;
    assert_eq!(tensor.as_slice().map(<[i32]>::as_ptr), Some(first));
    tensor
        .view_mut()
        .select(0, 1)?
        .copy_from_slice(&[7, 8, 9])?;
    tensor.as_mut_slice().expect("on the CPU")[0] = -1;
    assert_eq!(elements, [-1, 2, 3, 7, 8, 9]);
    let view = Tensor::from_slice([3, 2], &elements)?;
    let transposed = view.view().transpose(0, 1)?;
    assert_eq!(transposed.to_vec()?, [-1, 3, 8, 2, 7, 9]);
    assert!(transposed.as_slice().is_none());
    Ok(())
}
