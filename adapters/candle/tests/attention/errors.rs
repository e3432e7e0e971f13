//! Calls that are refused, in a line that says why.

use candle_core::{DType, Device, Result, Tensor, Var};
use ferroattn_candle::{
    Append, Attention, flash_attn, flash_attn_alibi, flash_attn_varlen, flash_attn_varlen_paged,
    flash_attn_varlen_paged_windowed,
};

fn zeros(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::Cpu).expect("a tensor")
}

fn f32(shape: &[usize]) -> Tensor {
    zeros(shape, DType::F32)
}

fn u32(numbers: &[u32]) -> Tensor {
    Tensor::new(numbers, &Device::Cpu).expect("a tensor")
}

/// The line of a refusal.
pub fn line<T: std::fmt::Debug>(refused: Result<T>) -> String {
    let message = refused.expect_err("a refusal").to_string();
    // A backtrace may follow.
    message.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn shapes() {
    let q = f32(&[2, 5, 4, 8]);
    let refused = |q: &Tensor, k: &Tensor, v: &Tensor| line(flash_attn(q, k, v, 1.0, true));
    let k = f32(&[2, 7, 2, 8]);
    assert_eq!(
        refused(&q, &f32(&[2, 7, 2, 16]), &k),
        "k has shape [2, 7, 2, 16]; it must be [2, 7, 2, 8]"
    );
    assert_eq!(
        refused(&q, &k, &f32(&[2, 6, 2, 8])),
        "v has shape [2, 6, 2, 8]; it must be [2, 7, 2, 8]"
    );
    assert_eq!(
        refused(&q, &f32(&[2, 7, 3, 8]), &f32(&[2, 7, 3, 8])),
        "heads is 4; it must be a multiple of kv_heads, which is 3"
    );
    assert_eq!(
        refused(&f32(&[5, 4, 8]), &k, &k),
        "q has shape [5, 4, 8]; it must be [batch, rows, heads, dim]"
    );
    let wide = f32(&[1, 1, 1, 1025]);
    assert_eq!(
        refused(&wide, &wide, &wide),
        "dim is 1025; it must be from 1 to 1024"
    );
}

#[test]
fn types() {
    let [q, k] = [DType::F16, DType::BF16].map(|dtype| zeros(&[1, 2, 1, 8], dtype));
    assert_eq!(
        line(flash_attn(&q, &k, &q, 1.0, true)),
        "k is of BF16; it must be of q's type, F16"
    );
    let q = zeros(&[1, 2, 1, 8], DType::F64);
    assert_eq!(
        line(flash_attn(&q, &q, &q, 1.0, true)),
        "attention computes F16, BF16 and, on the CPU, F32; not F64"
    );
}

#[test]
fn numbers() {
    let q = f32(&[1, 2, 1, 8]);
    assert_eq!(
        line(flash_attn(&q, &q, &q, f32::NAN, true)),
        "scale is NaN; it must be finite"
    );
    assert_eq!(
        line(Attention::new().softcap(-1.0).forward(&q, &q, &q)),
        "softcap is -1; it must be finite and above 0"
    );
}

#[test]
fn options() -> Result<()> {
    let q = f32(&[2, 5, 4, 8]);
    let refused = |attention: Attention| line(attention.forward(&q, &q, &q));
    assert_eq!(
        refused(Attention::new().bias(&f32(&[2, 4, 5]))),
        "bias has shape [2, 4, 5]; it must be [2, 4, 5, 5], with 1 for any of the first three"
    );
    assert_eq!(
        refused(Attention::new().mask(&zeros(&[1, 1, 5, 1], DType::U8))),
        "mask has shape [1, 1, 5, 1]; it must be [2, 4, 5, 5], with 1 for any of the first three"
    );
    assert_eq!(
        refused(Attention::new().mask(&f32(&[1, 1, 5, 5]))),
        "mask is of F32; it must be of U8"
    );
    assert_eq!(
        refused(Attention::new().sinks(&f32(&[2]))),
        "sinks has shape [2]; it must be [4]"
    );
    assert_eq!(
        refused(Attention::new().alibi(&f32(&[3, 4]))),
        "alibi has shape [3, 4]; it must be [4] or [2, 4]"
    );
    let lengths = zeros(&[3], DType::U32);
    assert_eq!(
        refused(Attention::new().padded(&lengths, &lengths)),
        "lengths_q has shape [3]; it must be [2]"
    );
    Ok(())
}

/// Candle would give slopes no gradient, and not say so.
#[test]
fn slopes_that_learn() -> Result<()> {
    let q = f32(&[1, 5, 4, 8]);
    let slopes = Var::zeros(4, DType::F32, &Device::Cpu)?;
    assert_eq!(
        line(flash_attn_alibi(&q, &q, &q, &slopes, 1.0, true)),
        "alibi has no gradient; pass alibi.detach()"
    );
    flash_attn_alibi(&q, &q, &q, &slopes.detach(), 1.0, true)?;
    Ok(())
}

#[test]
fn offsets() -> Result<()> {
    let q = f32(&[5, 4, 8]);
    let refused = |seqlens_q: &Tensor, seqlens_k: &Tensor| {
        line(flash_attn_varlen(
            &q, &q, &q, seqlens_q, seqlens_k, 5, 5, 1.0, true,
        ))
    };
    let offsets = |numbers: &[u32]| Tensor::new(numbers, &Device::Cpu);
    assert_eq!(
        refused(&offsets(&[0, 2, 5])?, &offsets(&[0, 5])?),
        "offsets_kv has shape [2]; it must be [3]"
    );
    assert_eq!(
        refused(&offsets(&[0, 6])?, &offsets(&[0, 5])?),
        "offsets_q[1] is 6; it must be from 0 to 5"
    );
    assert_eq!(
        refused(&offsets(&[])?, &offsets(&[])?),
        "offsets_q must have one more element than there are sequences, 2 or more"
    );
    let wrong = Tensor::new(&[0_i64, 5], &Device::Cpu)?;
    assert_eq!(
        refused(&wrong, &wrong),
        "offsets_q is of I64; it must be of one of [I32, U32]"
    );
    let batch = f32(&[1, 5, 4, 8]);
    let seqlens = offsets(&[0, 5])?;
    assert_eq!(
        line(flash_attn_varlen(
            &batch, &batch, &batch, &seqlens, &seqlens, 5, 5, 1.0, true
        )),
        "q has shape [1, 5, 4, 8]; of packed sequences it must be [rows, heads, dim]"
    );
    Ok(())
}

/// Arguments of a call of two sequences, of two and one queries and five and three keys, in four pages of four keys.
struct Paged {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqlens_q: Tensor,
    seqlens_k: Tensor,
    table: Tensor,
    max: [usize; 2],
    page: usize,
}

impl Paged {
    fn new() -> Result<Self> {
        Ok(Paged {
            q: f32(&[3, 4, 8]),
            k: f32(&[4, 4, 2, 8]),
            v: f32(&[4, 4, 2, 8]),
            seqlens_q: Tensor::new(&[0_u32, 2, 3], &Device::Cpu)?,
            seqlens_k: Tensor::new(&[0_u32, 5, 8], &Device::Cpu)?,
            table: Tensor::new(&[[3_u32, 0, 9], [1, 9, 9]], &Device::Cpu)?,
            max: [2, 5],
            page: 4,
        })
    }

    /// The line of a refusal of the arguments with a change.
    fn refused(change: fn(&mut Paged)) -> String {
        let mut call = Paged::new().expect("tensors");
        change(&mut call);
        line(call.forward())
    }

    fn forward(&self) -> Result<Tensor> {
        let (q, k, v, [max_q, max_k]) = (&self.q, &self.k, &self.v, self.max);
        let (seqlens_q, seqlens_k, table) = (&self.seqlens_q, &self.seqlens_k, &self.table);
        flash_attn_varlen_paged(
            q, k, v, seqlens_q, seqlens_k, table, max_q, max_k, 1.0, true, self.page,
        )
    }
}

#[test]
fn pages() -> Result<()> {
    Paged::new()?.forward()?;
    assert_eq!(
        Paged::refused(|call| call.table = f32(&[2, 3])),
        "pages is of F32; it must be of one of [I32, U32]"
    );
    assert_eq!(
        Paged::refused(|call| call.table = u32(&[3, 0])),
        "block_table has shape [2]; it must be [batch, most pages]"
    );
    assert_eq!(
        Paged::refused(|call| call.table = zeros(&[3, 3], DType::U32)),
        "pages has shape [3, 2]; it must be [2, most pages]"
    );
    assert_eq!(
        Paged::refused(|call| call.table = u32(&[3, 4, 1, 9]).reshape((2, 2)).expect("a table")),
        "pages[0, 1] is 4; it must be from 0 to 3, for entry 0 has 5 keys"
    );
    assert_eq!(
        Paged::refused(|call| call.table = u32(&[3, 1]).reshape((2, 1)).expect("a table")),
        "lengths_kv[0] is 5; it must be from 0 to 4"
    );
    assert_eq!(
        Paged::refused(|call| call.page = 8),
        "k has shape [4, 4, 2, 8]; it must be [pages, 8, kv_heads, dim]"
    );
    assert_eq!(
        Paged::refused(
            |call| (call.page, call.k, call.v) = (3, f32(&[4, 3, 2, 8]), f32(&[4, 3, 2, 8]))
        ),
        "a page has 3 keys; it must have a power of 2"
    );
    assert_eq!(
        Paged::refused(|call| call.v = f32(&[3, 4, 2, 8])),
        "v has shape [3, 4, 2, 8]; it must be [4, 4, 2, 8]"
    );
    assert_eq!(
        Paged::refused(|call| call.k = zeros(&[4, 4, 2, 8], DType::F16)),
        "k is of F16; it must be of q's type, F32"
    );
    assert_eq!(
        Paged::refused(|call| call.q = f32(&[1, 3, 4, 8])),
        "q has shape [1, 3, 4, 8]; it must be [total_q, heads, dim]"
    );
    assert_eq!(
        Paged::refused(|call| call.seqlens_q = zeros(&[3], DType::I64)),
        "seqlens_q is of I64; it must be of U32"
    );
    assert_eq!(
        Paged::refused(|call| call.seqlens_k = u32(&[0, 5])),
        "seqlens_q and seqlens_k have shapes [3] and [2]; they must be [sequences + 1], 2 or more"
    );
    assert_eq!(
        Paged::refused(|call| call.seqlens_q = u32(&[0, 2, 1])),
        "seqlens_q[2] is 1; it must be from 2 to 4"
    );
    assert_eq!(
        Paged::refused(|call| call.seqlens_k = u32(&[0, 6, 8])),
        "seqlens_k[1] is 6; it must be from 0 to 5"
    );
    assert_eq!(
        Paged::refused(|call| call.seqlens_q = u32(&[0, 1, 2])),
        "seqlens_q is from 0 to 2; it must be from 0 to 3"
    );
    Ok(())
}

#[test]
fn pages_and_other_options() -> Result<()> {
    let Paged {
        q,
        k,
        v,
        seqlens_q,
        seqlens_k,
        table,
        ..
    } = Paged::new()?;
    assert_eq!(
        line(flash_attn_varlen_paged_windowed(
            &q,
            &k,
            &v,
            &seqlens_q,
            &seqlens_k,
            &table,
            Some(&zeros(&[2, 1, 2], DType::I32)),
            2,
            5,
            1.0,
            None,
            Some(0),
            4,
            None,
        )),
        "mm_prefix_ranges is not served; pass None, or Attention::mask with padded queries"
    );
    let packed = Attention::new().packed(&seqlens_q, &seqlens_k);
    assert_eq!(
        line(packed.pages(&table).forward(&q, &k, &v)),
        "packed sequences have no pages or entries of a cache; padded ones have, and packed_queries"
    );
    let entries = zeros(&[1], DType::U32);
    let both = Attention::new().pages(&table).cache_entries(&entries);
    let batch = f32(&[2, 1, 4, 8]);
    assert_eq!(
        line(both.forward(&batch, &k, &v)),
        "cache_entries has shape [1]; it must be [2]"
    );
    let both = both.cache_entries(&zeros(&[2], DType::U32));
    let lengths = zeros(&[2], DType::U32);
    let both = both.padded(&lengths, &lengths);
    assert_eq!(
        line(both.forward(&batch, &k, &v)),
        "cache_entries cannot be combined with pages"
    );
    // Both ways to copy the queries.
    for rows in [3, 2] {
        let q = Var::from_tensor(&q.narrow(0, 0, rows)?)?;
        let seqlens_q = Tensor::new(&[0, rows as u32 - 1, rows as u32], &Device::Cpu)?;
        let o = flash_attn_varlen_paged(
            &q, &k, &v, &seqlens_q, &seqlens_k, &table, 2, 5, 1.0, true, 4,
        )?;
        assert_eq!(
            line(o.sum_all()?.backward().map(|_| o)),
            "attention to pages or entries of a cache has no gradients"
        );
    }
    Ok(())
}

#[test]
fn appends() -> Result<()> {
    let (k, v) = (f32(&[2, 3, 2, 8]), f32(&[2, 3, 2, 16]));
    let (k_cache, v_cache) = (f32(&[2, 4, 2, 8]), f32(&[2, 4, 2, 16]));
    let plain = Append::new();
    let refused =
        |append: &Append, k: &Tensor, v: &Tensor| line(append.run(k, v, &k_cache, &v_cache));
    assert_eq!(
        refused(&plain, &f32(&[3, 8]), &v),
        "k has shape [3, 8]; it must be [batch, rows, kv_heads, dim] or [rows, kv_heads, dim]"
    );
    assert_eq!(
        refused(&plain, &k, &f32(&[2, 2, 2, 16])),
        "v has shape [2, 2, 2, 16]; it must be [2, 3, 2, dim_v]"
    );
    assert_eq!(
        refused(&plain, &f32(&[2, 3, 1, 8]), &f32(&[2, 3, 1, 16])),
        "k_cache has shape [2, 4, 2, 8]; it must be [2, keys, 1, 8]"
    );
    assert_eq!(
        refused(&plain, &k, &f32(&[2, 3, 2, 8])),
        "v_cache has shape [2, 4, 2, 16]; it must be [2, 4, 2, 8]"
    );
    assert_eq!(
        line(plain.run(&k, &v, &f32(&[3, 4, 2, 8]), &f32(&[3, 4, 2, 16]))),
        "k_cache has shape [3, 4, 2, 8]; it must be [2, keys, 2, 8]"
    );
    assert_eq!(
        refused(&plain, &zeros(&[2, 3, 2, 8], DType::F16), &v),
        "v is of F32; it must be of F16"
    );
    assert_eq!(
        refused(&plain.clone().lengths(&u32(&[0, 2])), &k, &v),
        "entry 1 has 2 keys and gets 3 more; it has room for 4"
    );
    assert_eq!(
        refused(&plain.clone().lengths(&u32(&[0])), &k, &v),
        "lengths has shape [1]; it must be [2]"
    );
    assert_eq!(
        refused(&plain.clone().lengths(&f32(&[2])), &k, &v),
        "lengths is of F32; it must be of one of [I32, U32]"
    );
    assert_eq!(
        refused(&plain.clone().cache_entries(&u32(&[1, 1])), &k, &v),
        "two new keys would be key 0 of entry 1 of the cache"
    );
    assert_eq!(
        refused(&plain.clone().slots(&zeros(&[2, 3], DType::U32)), &k, &v),
        "slots is of U32; it must be of I64"
    );
    let slots = zeros(&[2, 3], DType::I64);
    let both = plain.clone().slots(&slots).cache_entries(&u32(&[0, 1]));
    assert_eq!(
        refused(&both, &k, &v),
        "cache_entries cannot be combined with slots"
    );
    let rotary = |cos: Tensor, sin: Tensor| refused(&plain.clone().rotary(&cos, &sin), &k, &v);
    assert_eq!(
        rotary(f32(&[2, 4]), f32(&[2, 4])),
        "entry 0 has a row at position 2; cos has 2 positions"
    );
    assert_eq!(
        rotary(f32(&[9, 4]), zeros(&[9, 4], DType::F16)),
        "sin is of F16; it must be of F32"
    );
    assert_eq!(
        rotary(f32(&[9, 5]), f32(&[9, 5])),
        "cos has 5 pairs; rows of 8 elements have at most 4"
    );
    let q = Var::from_tensor(&f32(&[2, 3, 4, 8]))?;
    assert_eq!(
        line(
            plain
                .run_with(&k, &v, &k_cache, &v_cache, &q)
                .map(|(q, _)| q)
        ),
        "q has no gradient through a cache; pass q.detach()"
    );
    Ok(())
}

/// Nothing that a call reads is a part of what it writes, and nothing is written twice.
#[test]
fn appends_to_themselves() -> Result<()> {
    let cache = f32(&[2, 8, 2, 8]);
    let [first, second] = [0, 4].map(|key| cache.narrow(1, key, 4));
    let (first, second, other) = (first?, second?, f32(&[2, 4, 2, 8]));
    let refused = |k: &Tensor, v: &Tensor, k_cache: &Tensor, v_cache: &Tensor| {
        line(Append::new().run(k, v, k_cache, v_cache))
    };
    Append::new().run(&other, &other, &first, &second)?;
    assert_eq!(
        refused(&first, &other, &second, &other.copy()?),
        "k lies in the storage of k_cache, which is written; pass a copy"
    );
    assert_eq!(
        refused(&other.copy()?, &first, &other, &second),
        "v lies in the storage of v_cache, which is written; pass a copy"
    );
    let refusal = "k_cache and v_cache share elements; each must have its own";
    assert_eq!(refused(&other, &other, &first, &first), refusal);
    let overlapping = cache.narrow(1, 3, 4)?;
    assert_eq!(refused(&other, &other, &first, &overlapping), refusal);
    // One begins where the other ends, and at its last element.
    let all = f32(&[256]);
    let from = |element| all.narrow(0, element, 128)?.reshape((2, 4, 2, 8));
    Append::new().run(&other, &other, &from(128)?, &from(0)?)?;
    assert_eq!(refused(&other, &other, &from(127)?, &from(0)?), refusal);
    // Side by side but for an element.
    let rows = f32(&[2, 4, 2, 15]);
    let [left, right] = [0, 7].map(|element| rows.narrow(3, element, 8));
    assert_eq!(refused(&other, &other, &left?, &right?), refusal);
    let repeated = f32(&[1, 4, 2, 8]).broadcast_as((2, 4, 2, 8))?;
    assert!(
        Append::new()
            .run(&other, &other, &repeated, &first)
            .is_err()
    );
    Ok(())
}

/// f32 is the CPU's alone, and tensors of a call are on one device.
#[test]
fn devices() -> Result<()> {
    let Some((device, _)) = crate::compare::devices()
        .into_iter()
        .find(|(device, _)| device.is_cuda())
    else {
        return Ok(());
    };
    let q = zeros(&[1, 2, 1, 8], DType::F16);
    let on_device = q.to_device(&device)?;
    assert_eq!(
        line(flash_attn(&on_device, &q, &on_device, 1.0, true)),
        "k is on Cpu; it must be on the device of q, Cuda { gpu_id: 0 }"
    );
    let slopes = f32(&[1]);
    assert_eq!(
        line(flash_attn_alibi(
            &on_device, &on_device, &on_device, &slopes, 1.0, true
        )),
        "alibi is on Cpu; it must be on the device of q, Cuda { gpu_id: 0 }"
    );
    let q = on_device.to_dtype(DType::F32)?;
    assert_eq!(
        line(flash_attn(&q, &q, &q, 1.0, true)),
        "no kernel computes f32, only f16 and bf16; use the CPU"
    );
    Ok(())
}
