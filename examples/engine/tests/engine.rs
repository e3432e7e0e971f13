//! Decoding on requests that grow gives what reading all anew gives; training lowers the loss.

use engine::generate::{generate, generate_anew};
use engine::model::Model;
use engine::requests::{Requests, read};
use engine::train::Trainer;
use ferroattn::Device;

/// Some tokens that follow from a seed.
fn text(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| ((i * i * 7 + seed * 13 + i) % 32) as u8)
        .collect()
}

/// The CPU, an emulated GPU, and a GPU if there is one.
fn devices() -> Vec<Device> {
    let emulated = Device::emulator(Default::default()).expect("kernels");
    let devices = [Device::cpu(), emulated];
    devices.into_iter().chain(Device::cuda(0).ok()).collect()
}

#[test]
fn steps_give_the_logits_of_a_prefill_of_all() {
    for device in devices() {
        let model = Model::new(&device, 3).expect("memory");
        let texts = [text(1, 9), text(2, 24), text(3, 6)];
        let prompts: Vec<&[u8]> = texts.iter().map(|text| &text[..text.len() - 5]).collect();
        let mut requests = Requests::new(&device, 3, 24).expect("memory");
        let mut found = requests.prefill(&model, &prompts).expect("prefilled");
        for behind in (0..=5).rev() {
            let so_far: Vec<&[u8]> = texts
                .iter()
                .map(|text| &text[..text.len() - behind])
                .collect();
            let (_, expected) = read(&model, &so_far).expect("read");
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                let difference = (found - expected).abs();
                assert!(difference < 1e-2, "{behind}: {found} for {expected}");
            }
            if behind > 0 {
                let tokens: Vec<u8> = texts.iter().map(|text| text[text.len() - behind]).collect();
                found = requests.step(&model, &tokens).expect("decoded");
            }
        }
        assert_eq!(requests.lengths().expect("read"), [9, 24, 6]);
    }
}

/// A text in which each token has one behind it, learnt by heart, then generated on every device.
#[test]
fn a_learnt_text_is_generated_with_a_cache_and_without() {
    let mut trainer = Trainer::new(Model::new(&Device::cpu(), 1).expect("memory")).expect("read");
    let cycle: Vec<u8> = (0..60).map(|i| (i * 5 % 24) as u8).collect();
    let texts = [&cycle[..40], &cycle[3..20], &cycle[11..14]];
    let first = trainer.step(&texts, 1.0).expect("a step");
    let losses: Vec<f32> = (0..200)
        .map(|_| trainer.step(&texts, 1.0).expect("a step"))
        .collect();
    let last = losses[199];
    assert!(last < 0.1 * first, "{first} to {last}");
    let prompts = [&cycle[..2], &cycle[..5], &cycle[..17]];
    let expected = prompts.map(|prompt| cycle[prompt.len()..][..20].to_vec());
    for device in devices() {
        let model = trainer.model.on(&device).expect("copied");
        let generated = generate(&model, &prompts, 20).expect("generated");
        assert_eq!(generated, expected, "on {}", device.name());
        let anew = generate_anew(&model, &prompts, 20).expect("generated");
        assert_eq!(anew, expected, "without a cache, on {}", device.name());
    }
}
