//! Keys and values appended to a cache, with rotation and without.

mod case;

pub use case::runs;

use case::cases;
use ferroattn::{Append, Device, Error, Result, Tensor, bf16, f16};
use libtest_mimic::Failed;
use tests::strategy::{check_each, few};
use tests::{Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let tests = vec![
        Test::new("any", |device| {
            let count = if device.is_emulator() { 40 } else { 100 };
            check_each(few(device, count), cases(), |case| case.check(device))
        }),
        Test::kernels("any_numbers", any_numbers),
        Test::new("wrong_numbers", wrong_numbers),
        Test::new("wrong_shapes", wrong_shapes),
    ];
    Test::and_on_hopper(tests)
}

/// Numbers that are not allowed: rows without a place are not written, and all others are.
fn any_numbers(device: &Device) -> Outcome {
    let ones = Tensor::new(device, [2, 1, 3, 8], &[f16::ONE; 48])?;
    let zeros = |entries: usize, keys: usize| Tensor::<f16>::zeros(device, [entries, 1, keys, 8]);
    // The rows that are written.
    let rows = |cache: &Tensor<f16>| -> Result<Vec<usize>> {
        let rows = cache.to_vec()?;
        let rows = rows.chunks(8).enumerate();
        Ok(rows
            .filter(|(_, row)| row[0] == f16::ONE)
            .map(|(n, _)| n)
            .collect())
    };
    let check = |call: Append, entries: usize, keys: usize, expected: &[usize]| -> Outcome {
        let (mut k, mut v) = (zeros(entries, keys)?, zeros(entries, keys)?);
        call.run(&ones, &ones, &mut k, &mut v)?;
        assert_eq!(
            (rows(&k)?, rows(&v)?),
            (expected.to_vec(), expected.to_vec())
        );
        PASSED
    };
    let lengths = |a, b| Tensor::new(device, [2], &[a, b]);
    check(Append::new().lengths(&lengths(3, i32::MAX)?), 2, 4, &[3])?;
    check(
        Append::new().lengths(&lengths(i32::MIN, 4)?),
        2,
        4,
        &[0, 1, 2],
    )?;
    let entries = lengths(7, 1)?;
    check(Append::new().cache_entries(&entries), 2, 4, &[4, 5, 6])?;
    let table = Tensor::new(device, [2, 2], &[1, -1, i32::MAX, 0])?;
    let first = lengths(1, 1)?;
    let paged = Append::new().pages(&table).lengths(&first);
    check(paged, 3, 2, &[0, 1, 3])?;
    let slots = Tensor::new(device, [2, 3], &[i64::MIN, 5, 6, i64::MAX, 1 << 32, -1])?;
    check(Append::new().slots(&slots), 2, 3, &[5])
}

/// Numbers that are not allowed are found where they are asked for, on the CPU always.
fn wrong_numbers(device: &Device) -> Outcome {
    let rows = Tensor::<f16>::zeros(device, [2, 1, 3, 8])?;
    let refused = |call: Append, shape: [usize; 4]| -> Result<Error, Failed> {
        let [mut k, mut v] = [Tensor::zeros(device, shape)?, Tensor::zeros(device, shape)?];
        let call = call.check_lengths(true);
        match call.run(&rows, &rows, &mut k, &mut v) {
            Err(error) => Ok(error),
            Ok(()) => Err("it was allowed".into()),
        }
    };
    let two = |a, b| Tensor::new(device, [2], &[a, b]);
    let found = refused(Append::new().lengths(&two(1, 2)?), [2, 1, 4, 8])?;
    assert_eq!(
        found,
        Error::Full {
            entry: 1,
            before: 2,
            rows: 3,
            capacity: 4
        }
    );
    let found = refused(Append::new().lengths(&two(-1, 0)?), [2, 1, 4, 8])?;
    assert!(matches!(
        found,
        Error::Entry {
            argument: "lengths",
            index: 0,
            value: -1,
            ..
        }
    ));
    let found = refused(Append::new().cache_entries(&two(1, 3)?), [3, 1, 4, 8])?;
    assert!(matches!(
        found,
        Error::Entry {
            argument: "cache_entries",
            value: 3,
            ..
        }
    ));
    let found = refused(Append::new().cache_entries(&two(1, 1)?), [3, 1, 4, 8])?;
    assert_eq!(found, Error::Taken { entry: 1, key: 0 });
    let table = |numbers: [i32; 4]| Tensor::new(device, [2, 2], &numbers);
    let found = refused(Append::new().pages(&table([0, 4, 1, 2])?), [4, 1, 2, 8])?;
    assert_eq!(
        found,
        Error::PageNumber {
            entry: 0,
            index: 1,
            value: 4,
            max: 3,
            keys: 3
        }
    );
    let found = refused(Append::new().pages(&table([0, 2, 1, 2])?), [4, 1, 2, 8])?;
    assert_eq!(found, Error::Taken { entry: 2, key: 0 });
    let slots = |numbers: [i64; 6]| Tensor::new(device, [2, 3], &numbers);
    let found = refused(
        Append::new().slots(&slots([0, 1, 2, 3, 4, 12])?),
        [3, 1, 4, 8],
    )?;
    assert_eq!(
        found,
        Error::Slot {
            entry: 1,
            row: 2,
            slot: 12,
            slots: 12
        }
    );
    let found = refused(
        Append::new().slots(&slots([0, 1, 2, 3, 4, 1])?),
        [3, 1, 4, 8],
    )?;
    assert_eq!(found, Error::Taken { entry: 0, key: 1 });
    let cos = Tensor::new(device, [4, 1], &[f16::ONE; 4])?;
    let late = two(0, 2)?;
    let found = refused(
        Append::new().lengths(&late).rotary(&cos, &cos),
        [2, 1, 9, 8],
    )?;
    assert_eq!(
        found,
        Error::Position {
            entry: 1,
            position: 4,
            positions: 4
        }
    );
    PASSED
}

/// Shapes and types that do not fit.
fn wrong_shapes(device: &Device) -> Outcome {
    let zeros = |shape: [usize; 4]| Tensor::<f16>::zeros(device, shape);
    let rows = zeros([2, 1, 3, 8])?;
    let refused = |call: Append, k: [usize; 4], v: [usize; 4]| -> Result<Error, Failed> {
        match call.run(&rows, &rows, &mut zeros(k)?, &mut zeros(v)?) {
            Err(error) => Ok(error),
            Ok(()) => Err("it was allowed".into()),
        }
    };
    let cache = [2, 1, 4, 8];
    for (wrong, k, v) in [
        ("k_cache", [2, 2, 4, 8], cache),
        ("v_cache", cache, [2, 1, 5, 8]),
        ("k_cache", [3, 1, 4, 8], [3, 1, 4, 8]),
    ] {
        let found = refused(Append::new(), k, v)?;
        let is_named = matches!(found, Error::Shape { argument, .. } if argument == wrong);
        assert!(is_named, "{found:?}");
    }
    let cos = Tensor::<f32, 2>::zeros(device, [4, 5])?;
    let found = refused(Append::new().rotary(&cos, &cos), cache, cache)?;
    assert_eq!(found, Error::RotaryDim { pairs: 5, dim: 8 });
    let cos = Tensor::<bf16, 2>::zeros(device, [4, 4])?;
    let found = refused(Append::new().rotary(&cos, &cos), cache, cache)?;
    assert!(matches!(found, Error::RotaryDtype { .. }), "{found:?}");
    let (table, numbers) = (Tensor::zeros(device, [2, 2])?, Tensor::zeros(device, [2])?);
    let found = refused(
        Append::new().pages(&table).cache_entries(&numbers),
        cache,
        cache,
    )?;
    assert_eq!(found, Error::Excluded("pages", "cache_entries"));
    let found = refused(Append::new().pages(&table), [2, 1, 12, 8], [2, 1, 12, 8])?;
    assert_eq!(found, Error::Page(12));
    PASSED
}
