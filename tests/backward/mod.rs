//! The backward pass.

mod definition;
mod f16_range;
mod kernels;
mod lengths;
mod random;
mod real_data;
mod short;
mod special_values;
mod views;

use ferroattn::Class;
use tests::Test;

/// The tests of this folder.
pub fn tests() -> Vec<Test> {
    let files = [
        ("definition", definition::tests()),
        ("f16_range", f16_range::tests()),
        ("lengths", lengths::tests()),
        ("random", random::tests()),
        ("real_data", real_data::tests()),
        ("short", short::tests()),
        ("special_values", special_values::tests()),
        ("views", views::tests()),
    ];
    let named = |(file, tests): (&'static str, Vec<Test>)| {
        tests.into_iter().map(move |test| test.within(file))
    };
    let tests: Vec<Test> = files.into_iter().flat_map(named).collect();
    // Hopper has kernels of its own.
    let hopper = tests
        .iter()
        .filter_map(|test| test.emulated_as(Class::Sm90));
    let hopper: Vec<_> = hopper.collect();
    // Each of these has its own device.
    let kernels = kernels::tests()
        .into_iter()
        .map(|test| test.within("kernels"));
    tests.into_iter().chain(hopper).chain(kernels).collect()
}
