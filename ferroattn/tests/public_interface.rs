//! Every public function that an argument could be wrong for has a test of wrong arguments, or a reason why it needs none.
//! Unsafe ones say what they ask of callers.

mod interface;

use interface::listing::listing;
use interface::{Function, Interface};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Tests that pass wrong arguments, `FILE::NAME` from the root of the workspace, and the functions that they call.
const TESTED: &[(&str, &[&str])] = &[
    (
        "ferroattn/tests/wrong_arguments/plans.rs::plans",
        &[
            "Attention::plan",
            "Attention::backward_plan",
            "Attention::splits",
            "Attention::split_keys",
            "Attention::fp8",
            "RawForward::row_major",
            "RawBackward::row_major",
            "RawBackward::new",
            "RawTensor::row_major",
            "ferroattn::tensor_map::has_map",
        ],
    ),
    (
        "ferroattn/tests/wrong_arguments/plans.rs::plans_of_matrices",
        &[
            "Gemm::plan",
            "Gemm::stages",
            "RawGemm::row_major",
            "GemmProblem::flops",
            "GemmProblem::a_shape",
            "GemmProblem::b_shape",
            "GemmProblem::c_shape",
        ],
    ),
    (
        "ferroattn/tests/wrong_arguments/plans.rs::plans_of_merges",
        &[
            "merge::call::merge_plan",
            "merge::backward::merge_backward_plan",
            "RawMerge::row_major",
            "RawMergeBackward::row_major",
        ],
    ),
    (
        "ferroattn/tests/wrong_arguments/plans.rs::plans_of_appends",
        &["append::plan::append_plan", "RawAppend::new"],
    ),
    (
        "tests/append.rs::wrong_shapes",
        &[
            "Append::on",
            "Append::rotary",
            "Append::run",
            "Append::run_with",
        ],
    ),
    (
        "ferroattn/tests/wrong_arguments/plans.rs::plans_of_csr_pages",
        &["csr::plan::csr_pages_plan", "RawCsrPages::new"],
    ),
    (
        "tests/csr.rs::wrong_shapes",
        &["CsrPages::new", "CsrPages::on", "CsrPages::run"],
    ),
    (
        "tests/prefix.rs::refused",
        &["Attention::prefix", "Attention::prefix_pages"],
    ),
    ("tests/pages.rs::wrong_pages", &["Attention::pages"]),
    (
        "tests/packed_queries.rs::wrong_arguments",
        &["Attention::packed_queries"],
    ),
    (
        "tests/fp8/e4m3.rs::wrong_calls",
        &[
            "Attention::descales",
            "Attention::forward_e4m3",
            "Attention::forward_e4m3_into",
        ],
    ),
    (
        "tests/e4m3_cache.rs::wrong_calls",
        &[
            "Attention::cache_descales",
            "Attention::page_descales",
            "Attention::forward_e4m3_cache",
            "Attention::forward_e4m3_cache_into",
            "Append::descales",
            "Append::page_descales",
            "Append::run_e4m3",
        ],
    ),
    (
        "tests/decoder.rs::refused",
        &[
            "Decoder::new",
            "Decoder::rotary",
            "Decoder::layer",
            "Decoder::advance",
        ],
    ),
    (
        "ferroattn/tests/wrong_arguments/plans.rs::problems_of_any_fields",
        &[
            "Attention::host_options",
            "Problem::keys",
            "Problem::flops",
            "Problem::backward_flops",
            "Problem::validate",
            "forward::choice::check",
            "forward::choice::suitable",
            "Problem::q_shape",
            "Problem::k_shape",
            "Problem::v_shape",
            "Problem::o_shape",
            "Problem::lse_shape",
        ],
    ),
    (
        "ferroattn/tests/wrong_arguments/plans.rs::facts_alone",
        &["Facts::class", "Facts::fits", "Facts::resident_blocks"],
    ),
    (
        "ferroattn/tests/wrong_arguments/devices.rs::devices_have_possible_facts",
        &["Device::with_driver", "Emulator::new"],
    ),
    (
        "ferroattn/tests/wrong_arguments/devices.rs::drafts_of_other_kernels",
        &[
            "Draft::new",
            "Draft::launch",
            "Draft::launch_by_maps",
            "Draft::reserve_partials",
            "MainKernel::resident_blocks",
            "Steps::launch",
            "Steps::finish",
        ],
    ),
    (
        "ferroattn/tests/wrong_arguments/devices.rs::drivers_take_any_arguments",
        &["Driver::allocate", "Driver::load", "Driver::tensor_map"],
    ),
    (
        "ferroattn/src/pack.rs::copies_are_row_major_and_broadcasts_stay",
        &["Steps::pack"],
    ),
    (
        "ferroattn/tests/wrong_arguments/devices.rs::plans_of_other_kernels_warm_nothing_up",
        &[
            "Device::warm_up",
            "Entry::text",
            "Entry::marked_text",
            "Entry::whole_text",
            "ferroattn::ptx::module",
            "ferroattn::ptx::text",
            "ferroattn::ptx::marked",
        ],
    ),
    (
        "ferroattn/tests/wrong_arguments/devices.rs::other_texts_are_refused",
        &["Emulator::with_ptx"],
    ),
    (
        "ferroattn/src/tensor/tests.rs::memory_of_the_host_is_checked",
        &[
            "TensorBase::from_vec",
            "TensorBase::from_slice",
            "TensorBase::from_slice_mut",
            "TensorBase::copy_from_slice",
            "TensorBase::split_mut",
        ],
    ),
    (
        "ferroattn/tests/wrong_arguments/devices.rs::options_of_the_emulator_are_checked",
        &["Device::emulator", "Device::emulator_of"],
    ),
    (
        "ferroattn/tests/wrong_arguments/devices.rs::events_of_two_devices",
        &["Event::since"],
    ),
    (
        "ferroattn/tests/wrong_arguments/devices.rs::no_such_gpu",
        &["Device::cuda", "CudaDriver::open"],
    ),
    (
        "ferroattn/tests/wrong_arguments/values.rs::prefixes_of_other_shapes",
        &["ferroattn::random::share_prefix"],
    ),
    (
        "ferroattn/tests/wrong_arguments/values.rs::random_tensors_may_be_empty",
        &[
            "ferroattn::random::bias",
            "ferroattn::random::mask",
            "ferroattn::random::matrices",
            "options::slopes::alibi_slopes",
        ],
    ),
    (
        "ferroattn/tests/wrong_arguments/values.rs::samples_of_any_size",
        &[
            "forward::check::sample_rows",
            "backward::check::sample_keys",
            "gemm::check::sample",
        ],
    ),
    (
        "ferroattn/tests/wrong_arguments/values.rs::checks_of_other_sizes_panic",
        &[
            "forward::check::check",
            "backward::check::check",
            "gemm::check::check",
            "forward::check::Expected::new",
            "forward::check::Expected::compare",
            "backward::check::Expected::new",
            "backward::check::Expected::compare",
        ],
    ),
    (
        "ferroattn/tests/wrong_arguments/values.rs::slices_of_two_lengths_panic",
        &["Element::to_f32_slice", "Element::from_f32_slice"],
    ),
    (
        "ferroattn/tests/wrong_arguments/values.rs::elements_without_bytes",
        &["Device::upload", "TensorBase::zeros"],
    ),
    (
        "ferroattn/tests/wrong_arguments/values.rs::counters_of_any_numbers",
        &[
            "Tally::bank_conflicts",
            "Tally::extra_sectors",
            "Tally::count_shared",
            "Finding::extra",
        ],
    ),
    ("tests/errors.rs::dims", &["Attention::problem"]),
    (
        "tests/errors.rs::shapes_that_disagree",
        &["Attention::forward", "Problem::new"],
    ),
    ("tests/errors.rs::strides", &["Attention::forward_into"]),
    ("tests/errors.rs::scales", &["Attention::scale"]),
    ("tests/errors.rs::kernels", &["Attention::kernel"]),
    (
        "tests/errors.rs::backward_arguments",
        &[
            "Attention::backward_into",
            "BackwardInputs::new",
            "GradientsMut::new",
        ],
    ),
    (
        "ferroattn/src/backward/gradients.rs::gradients_of_options_are_asked_for",
        &[
            "Gradients::new",
            "Gradients::view_mut",
            "GradientsMut::d_bias",
            "GradientsMut::d_sinks",
        ],
    ),
    (
        "ferroattn/src/backward/gradients.rs::the_gradient_of_lse_counts",
        &["BackwardInputs::d_lse"],
    ),
    ("tests/other_devices.rs::backward", &["Attention::backward"]),
    (
        "tests/other_devices.rs::streams",
        &["Attention::on", "Stream::wait_for"],
    ),
    (
        "tests/other_devices.rs::backward_all",
        &["Attention::backward_all"],
    ),
    (
        "tests/other_devices.rs::merges",
        &["merge::call::merge", "merge::call::merge_into"],
    ),
    (
        "tests/other_devices.rs::gradients_of_merges",
        &[
            "merge::backward::merge_backward",
            "merge::backward::merge_backward_into",
        ],
    ),
    (
        "ferroattn/src/forward/call/tests.rs::tensors_of_options_are_checked",
        &[
            "Attention::alibi",
            "Attention::sinks",
            "Attention::bias",
            "Attention::mask",
            "Attention::softcap",
        ],
    ),
    (
        "ferroattn/src/options/tests.rs::bad_sequences_are_refused",
        &[
            "Attention::packed",
            "Attention::padded",
            "Attention::padded_keys",
        ],
    ),
    (
        "ferroattn/src/options/tests.rs::bad_numbers_of_entries_are_refused",
        &["Attention::first_keys", "Attention::cache_entries"],
    ),
    (
        "examples/custom_score/tests/documents.rs::bad_calls_are_refused",
        &["Attention::custom"],
    ),
    (
        "ferroattn/src/backward/call.rs::plans_say_what_a_device_lacks",
        &["Attention::planner"],
    ),
    (
        "ferroattn/src/gemm/call.rs::arguments_are_checked",
        &[
            "Gemm::forward",
            "Gemm::forward_into",
            "GemmProblem::new",
            "GemmProblem::validate",
        ],
    ),
    (
        "ferroattn/src/gemm/call.rs::options_are_checked",
        &["Gemm::kernel", "Gemm::accumulation"],
    ),
    (
        "ferroattn/src/gemm/choice.rs::device_and_options_decide_the_families",
        &["Gemm::families", "Gemm::suitable"],
    ),
    (
        "ferroattn/src/tensor/tests.rs::data_must_fill_the_shape",
        &["TensorBase::new"],
    ),
    (
        "ferroattn/src/tensor/tests.rs::views_stay_inside_their_buffer",
        &["TensorBase::from_buffer"],
    ),
    (
        "ferroattn/src/tensor/tests.rs::wrong_axes_and_ranges_are_named",
        &[
            "TensorBase::narrow",
            "TensorBase::transpose",
            "TensorBase::permute",
        ],
    ),
    (
        "ferroattn/src/tensor/tests.rs::sizes_that_overflow_are_refused",
        &["TensorBase::reshape", "TensorBase::broadcast"],
    ),
    (
        "ferroattn/src/tensor/tests.rs::copies_are_checked",
        &["TensorBase::copy_from"],
    ),
    (
        "emulator/src/memory.rs::accesses_outside_buffers_are_errors",
        &[
            "Memory::free",
            "Memory::protect",
            "Memory::read",
            "Memory::write",
            "Memory::allocate",
            "Memory::try_allocate",
        ],
    ),
    (
        "emulator/tests/suite/fuzz.rs::any_text_does_no_harm",
        &["Module::parse", "Module::shared"],
    ),
    (
        "emulator/tests/suite/rules.rs::bad_launches_are_errors",
        &["emulator::launch::launch", "Module::entry"],
    ),
    (
        "emulator/tests/suite/tensor_copy.rs::maps_keep_their_limits",
        &["emulator::tensor_map::TensorMap::encode"],
    ),
];

/// Why no argument of these functions can be wrong.
const SOUND: &[(&str, &[&str])] = &[
    (
        "any number is legal",
        &[
            "Attention::window",
            "Fp8::hadamard",
            "Element::from_f32",
            "Problem::widest",
            "Problem::is_empty",
            "Problem::expect_work",
            "Array::at",
            "Array::part",
            "Word::of",
        ],
    ),
    (
        "tensors of other shapes than the problem's panic, as documented",
        &[
            "Rounded::new",
            "Rounded::of_e4m3",
            "Rounded::of_e4m3_call",
            "Rounded::problem",
            "forward::check::Expected::of_rounded",
            "forward::check::Expected::of_rounded_in_f32",
        ],
    ),
    ("any class is legal", &["Facts::emulated"]),
    (
        "any text is legal",
        &[
            "Class::named",
            "Accumulation::named",
            "Counters::total_of",
            "ferroattn::error::Error::unsuitable",
            "ferroattn::error::Error::unknown_kernel",
        ],
    ),
    ("any device is legal", &["TensorBase::to_device"]),
    ("any data is legal", &["Memory::upload"]),
    (
        "it only passes the parts on",
        &[
            "Sequences::map",
            "Sequences::try_map",
            "Sequences::padded_keys",
        ],
    ),
    (
        "it gives addresses to the caller, and uses none",
        &["Rows::each"],
    ),
    (
        "a division by 0 panics, as documented",
        &["Problem::group", "Problem::kv_head"],
    ),
    (
        "a problem too large for memory panics, as documented",
        &[
            "ferroattn::random::inputs",
            "ferroattn::random::output_gradient",
            "ferroattn::random::permutation",
            "ferroattn::random::sinks",
            "forward::check::all_rows",
            "backward::check::all_keys",
        ],
    ),
    (
        "a number that is not below ARRAYS panics, as documented",
        &["Call::array"],
    ),
    (
        "it sums what counters hold",
        &[
            "Counters::bank_conflicts",
            "Counters::barriers",
            "Counters::by_kind",
            "Counters::findings",
            "Counters::mma",
            "Counters::per_mma",
            "Counters::total",
            "Counters::uncoalesced",
        ],
    ),
    ("it reads a launch", &["Step::kernel", "Step::threads"]),
    (
        "it compares numbers",
        &[
            "Comparison::passed",
            "forward::check::Report::passed",
            "backward::check::Report::passed",
            "backward::check::Report::worst",
        ],
    ),
    (
        "the library calls it, with what its trait says",
        &[
            "Custom::derivative",
            "Custom::keys",
            "Custom::new",
            "Custom::queries",
            "Custom::score",
            "Planner::plan",
        ],
    ),
];

fn source(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn public() -> BTreeMap<String, Function> {
    Interface::read(&["ferroattn", "emulator", "kernels"]).functions()
}

/// The functions of both lists.
fn listed() -> Vec<&'static str> {
    let all = TESTED.iter().chain(SOUND);
    all.flat_map(|(_, functions)| functions.iter().copied())
        .collect()
}

/// A change of the interface is seen where it is made. `BLESS=1` lists the interface anew.
#[test]
fn the_interface_is_the_listed_one() {
    let found = listing();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("public_interface.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, found).expect("written");
        return;
    }
    let listed = std::fs::read_to_string(path).expect("there is a list");
    let [is, was] = [&found, &listed].map(|all| all.lines().collect::<BTreeSet<_>>());
    let new = is.difference(&was).map(|line| format!("+ {line}"));
    let gone = was.difference(&is).map(|line| format!("- {line}"));
    let changes: Vec<_> = gone.chain(new).collect();
    assert!(
        changes.is_empty(),
        "public_interface.txt has another interface; BLESS=1 renews it:\n{}",
        changes.join("\n")
    );
}

/// Types of the kernels may change in any release, but for those of scores and masks of other crates.
#[test]
fn the_interface_names_no_kernels() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("public_interface.txt");
    let listed = std::fs::read_to_string(path).expect("there is a list");
    let names_kernels = |line: &&str| {
        let mut rest = line.split("kernels::").skip(1);
        rest.any(|path| !path.starts_with("attention::custom"))
    };
    let named: Vec<_> = listed.lines().filter(names_kernels).collect();
    assert!(named.is_empty(), "{}", named.join("\n"));
    assert!(
        listed.contains("kernels::attention::custom"),
        "one is named"
    );
}

#[test]
fn every_function_is_listed() {
    let listed: BTreeSet<&str> = listed().into_iter().collect();
    let missing: Vec<String> = public()
        .into_iter()
        .filter(|(name, function)| function.may_be_wrong && !listed.contains(name.as_str()))
        .map(|(name, _)| name)
        .collect();
    assert!(
        missing.is_empty(),
        "without a test of wrong arguments:\n{}",
        missing.join("\n")
    );
}

#[test]
fn every_listed_function_is_public_and_takes_arguments() {
    let public = public();
    let mut seen = BTreeSet::new();
    for name in listed() {
        assert!(seen.insert(name), "{name} is listed twice");
        let function = public.get(name);
        assert!(function.is_some(), "{name} is no public function");
        assert!(
            function.is_some_and(|function| function.may_be_wrong),
            "{name} takes no arguments"
        );
    }
}

#[test]
fn every_named_test_exists() {
    for (test, _) in TESTED {
        let (file, name) = test.split_once("::").expect("FILE::NAME");
        let found = source(file).contains(&format!("fn {name}("));
        assert!(found, "{file} has no test {name}");
    }
}

#[test]
fn unsafe_functions_say_what_they_ask_for() {
    let silent: Vec<String> = public()
        .into_iter()
        .filter(|(_, function)| function.is_unsafe && !function.says_safety)
        .map(|(name, _)| name)
        .collect();
    assert!(silent.is_empty(), "without a section # Safety: {silent:?}");
}
