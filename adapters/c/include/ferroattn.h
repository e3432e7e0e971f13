// The C interface of the attention library, which adapters/c/README.md explains.
//
// cbindgen writes this file: FERROATTN_WRITE_HEADER=1 cargo test -p adapter-c --test header

#ifndef FERROATTN_H
#define FERROATTN_H

#include <stddef.h>
#include <stdint.h>

// Version of the interface that the header describes: a higher number has more functions, more fields or more values.
#define FERROATTN_VERSION 8

// How a call ended. Of all but `FERROATTN_STATUS_OK`, `ferroattn_last_error` has the reason.
enum FerroattnStatus
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // All went well.
  FERROATTN_STATUS_OK = 0,
  // An argument is wrong.
  FERROATTN_STATUS_ARGUMENT = 1,
  // No kernel of the device, or none in this program, computes the call.
  FERROATTN_STATUS_UNSUPPORTED = 2,
  // Memory ran out.
  FERROATTN_STATUS_MEMORY = 3,
  // The device or its driver reports a failure, maybe of earlier work.
  FERROATTN_STATUS_DEVICE = 4,
  // A fault of the library.
  FERROATTN_STATUS_FAULT = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum FerroattnStatus FerroattnStatus;
#else
typedef int32_t FerroattnStatus;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Types of elements.
enum FerroattnDtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // IEEE half precision.
  FERROATTN_DTYPE_F16 = 1,
  // The upper half of an `F32`.
  FERROATTN_DTYPE_BF16 = 2,
  // IEEE single precision, on the CPU alone, or of o of inputs that are e4m3.
  FERROATTN_DTYPE_F32 = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum FerroattnDtype FerroattnDtype;
#else
typedef uint32_t FerroattnDtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Inputs that hold e4m3, one byte each. They stand for these numbers times descales.
enum FerroattnE4m3
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // None.
  FERROATTN_E4M3_NONE = 0,
  // q, k and v: the `FerroattnDtype` is that of o alone.
  FERROATTN_E4M3_INPUTS = 1,
  // k and v, a cache beside q and o of the `FerroattnDtype`.
  FERROATTN_E4M3_CACHE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum FerroattnE4m3 FerroattnE4m3;
#else
typedef uint32_t FerroattnE4m3;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How q, k and v are rounded to e4m3.
enum FerroattnFp8
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // They are not.
  FERROATTN_FP8_NONE = 0,
  // Scaled, then rounded.
  FERROATTN_FP8_ROUNDED = 1,
  // Rows of q and k are rotated before, which spreads outliers. Since version 6.
  FERROATTN_FP8_HADAMARD = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum FerroattnFp8 FerroattnFp8;
#else
typedef uint32_t FerroattnFp8;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Types of a mask's elements.
enum FerroattnMask
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Bytes; 0 hides a key.
  FERROATTN_MASK_BYTES = 0,
  // Words of 32 bits: key `j` is bit `j % 32` of word `j / 32`, and 0 hides it.
  FERROATTN_MASK_BITS = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum FerroattnMask FerroattnMask;
#else
typedef uint32_t FerroattnMask;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Sequences of several lengths in a batch: a query sees keys of its own sequence alone.
enum FerroattnSequences
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // All entries of the batch fill their rows.
  FERROATTN_SEQUENCES_NONE = 0,
  // Offsets `int32[n + 1]` of `n` sequences in the one entry of the batch, which never fall.
  FERROATTN_SEQUENCES_PACKED = 1,
  // Lengths `int32[batch]`.
  FERROATTN_SEQUENCES_PADDED = 2,
  // Offsets `int32[n + 1]` of queries, as of `Packed`, and lengths `int32[n]` of keys, which `pages` have: a row of these for each
  // sequence, `int32[n, most]`. Bias and mask do not go with them. Since version 7.
  FERROATTN_SEQUENCES_PACKED_QUERIES = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum FerroattnSequences FerroattnSequences;
#else
typedef uint32_t FerroattnSequences;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A device that computes: a GPU, the CPU, or an emulated GPU.
//
// Threads may use one device at once; only `ferroattn_close` must come after all other calls with it.
typedef struct FerroattnDevice FerroattnDevice;

// The launches of a call, as data. A plan needs neither the tensors nor the device that it was made for.
typedef struct FerroattnPlan FerroattnPlan;

// A tensor in the device's memory. Tensors of fewer than four axes use the first entries of `shape` and `strides`.
//
// This struct has no size field, and never changes.
typedef struct FerroattnTensor {
  // Address of the first element, a multiple of its size. A plan takes 0, for a tensor that does not exist yet.
  uint64_t address;
  // Extent of each axis.
  int64_t shape[4];
  // Elements from one index to the next, for each axis; zero and negative ones are fine.
  int64_t strides[4];
} FerroattnTensor;

// Tensors of new keys and values, the cache that gets them, and options. Zeros turn an option off, and flags are 0 or 1.
//
// New row `i` of entry `b` becomes key `lengths[b] + i`: of entry `b` of the cache, of entry `cache_entries[b]`, or of the
// pages of row `b` of the table. Or `slots` says where each row goes. A call has one of these three at most.
typedef struct FerroattnAppend {
  // `sizeof(FerroattnAppend)`.
  uint32_t struct_size;
  // The `FerroattnDtype` of k, v, q and rotated, and of the caches unless `e4m3_cache` is 1.
  uint32_t dtype;
  // New keys, `[batch, kv_heads, rows, dim]`; like all tensors of four axes, with stride 1 in the last one.
  struct FerroattnTensor k;
  // New values, `[batch, kv_heads, rows, dim_v]`.
  struct FerroattnTensor v;
  // Keys of the cache, an output: `[entries or pages, kv_heads, keys, dim]`.
  struct FerroattnTensor k_cache;
  // Values of the cache, an output: `[entries or pages, kv_heads, keys, dim_v]`.
  struct FerroattnTensor v_cache;
  // Queries `[batch, heads, any rows, dim]`, which are rotated like the keys.
  const struct FerroattnTensor *q;
  // Rotated queries, an output of q's shape; q's own place is fine.
  const struct FerroattnTensor *rotated;
  // The pages of each entry of the batch, `int32[batch, most]` with stride 1 in the last axis. A page has a power of 2 of keys.
  const struct FerroattnTensor *pages;
  // The entry of the cache for each entry of the batch, `int32[batch]` with stride 1.
  const struct FerroattnTensor *cache_entries;
  // How many keys each entry of the batch has before, `int32[batch]` with stride 1; NULL for none.
  const struct FerroattnTensor *lengths;
  // How many keys each entry has behind, another output, `int32[batch]` with stride 1, in memory of its own.
  const struct FerroattnTensor *new_lengths;
  // Where each new row goes, `int64[batch, rows]` with stride 1 in the last axis: row `slot % keys` of entry or page
  // `slot / keys`; nowhere if it is negative.
  const struct FerroattnTensor *slots;
  // The position of each new row, and of the query beside it, `int32[batch, rows]` with stride 1 in the last axis; NULL for
  // `lengths[b] + i`.
  const struct FerroattnTensor *positions;
  // Cosines of a rotary embedding, `[positions, rotary_dim / 2]` with stride 1 in the last axis.
  const struct FerroattnTensor *cos;
  // Sines, of the cosines' shape.
  const struct FerroattnTensor *sin;
  // The `FerroattnDtype` of cosines and sines: `F32`, or that of the rows.
  uint32_t rotary_dtype;
  // Whether elements `2i` and `2i + 1` are a pair; otherwise `i` and `i + rotary_dim / 2` are.
  uint32_t interleaved;
  // Whether all queries of an entry have the position of the first one; otherwise row `i` is `i` positions behind.
  uint32_t q_at_first;
  // Whether a GPU checks all numbers before it writes, and the call waits for that. The CPU always does.
  uint32_t check_lengths;
  // What multiplies a head's keys of a cache of e4m3, `float[batch, kv_heads]` or `float[pages, kv_heads]` of any strides: rows are
  // divided by it and rounded, to 448 if they are larger. NULL for 1. Since version 6.
  const struct FerroattnTensor *k_descale;
  // What multiplies a head's values, likewise. Since version 6.
  const struct FerroattnTensor *v_descale;
  // Whether k_cache and v_cache hold e4m3, in bytes. Since version 6.
  uint32_t e4m3_cache;
  // Whether each page, or entry of the cache beside `slots`, has a row of `k_descale` and `v_descale`. Since version 6.
  uint32_t page_descales;
} FerroattnAppend;

// Options of a call; `ferroattn_options_init` turns all off. Flags are 0 or 1.
//
// Tensors have full shapes: an axis that an option does not have is repeated, with a stride of 0. NULL turns an option off.
typedef struct FerroattnOptions {
  // `sizeof(FerroattnOptions)`.
  uint32_t struct_size;
  // Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q`.
  uint32_t causal;
  // Keys before a query's own place that it sees; -1 for all.
  int64_t window_left;
  // Keys after a query's own place that it sees; -1 for all. With `causal`, none.
  int64_t window_right;
  // Factor of scores; NaN for `1 / sqrt(dim)`.
  float scale;
  // The bound `c` of scores, which become `c * tanh(score / c)`; 0 for none.
  float softcap;
  // Splits of the keys; 0 for as many as fill the GPU.
  uint32_t splits;
  // Whether gradients are the same bits in every run.
  uint32_t deterministic;
  // Whether a GPU checks the numbers of sequences, first keys, entries and pages before it computes. The CPU always does.
  uint32_t check_lengths;
  // Which `FerroattnSequences` the call has.
  uint32_t sequences;
  // The `FerroattnDtype` of the bias.
  uint32_t bias_dtype;
  // The `FerroattnMask` of the mask.
  uint32_t mask_type;
  // Name of the kernel; NULL for the best.
  const char *kernel;
  // Slopes of ALiBi, `float[batch, heads]`, or of packed sequences `float[sequences, heads]`.
  const struct FerroattnTensor *alibi;
  // Sinks, `float[heads]`: logits of keys without values.
  const struct FerroattnTensor *sinks;
  // A bias that is added to scores, `[batch, heads, seqlen_q, seqlen_kv]`, with stride 1 in the last axis.
  const struct FerroattnTensor *bias;
  // A mask `[batch, heads, seqlen_q, seqlen_kv]`, of bits with `ceil(seqlen_kv / 32)` words in the last axis, of stride 1.
  const struct FerroattnTensor *mask;
  // Offsets or lengths of queries, with stride 1. NULL for padded sequences of which all queries count.
  const struct FerroattnTensor *sequences_q;
  // Offsets or lengths of keys, with stride 1.
  const struct FerroattnTensor *sequences_kv;
  // The first key of each entry of the batch, `int32[batch]` with stride 1; not of packed sequences.
  const struct FerroattnTensor *first_keys;
  // The entry of k and v for each entry of the batch, `int32[batch]` with stride 1: k and v have any number of entries. Such a
  // call has no gradients.
  const struct FerroattnTensor *cache_entries;
  // The pages of each entry of the batch, `int32[batch, most]` with stride 1 in the last axis: k and v are
  // `[pages, kv_heads, page, dim]`, and key `j` is row `j % page` of page `table[batch, j / page]`. A page has a power of 2 of keys,
  // and seqlen_kv is `most * page`. Such a call has no gradients. Since version 2.
  const struct FerroattnTensor *pages;
  // Whether results of a query have the same bits beside any neighbours in the batch, and however its sequence is cut into chunks.
  // Since version 3.
  uint32_t batch_invariant;
  // Keys of a split, in place of `splits`; 0 for none. Since version 3.
  uint32_t split_keys;
  // Keys that all entries of the batch share before their own, `[1, kv_heads, keys, dim]` of k's type, with stride 1 in dim. A call
  // has both of these or neither. Such a call has no gradients. Since version 4.
  const struct FerroattnTensor *prefix_k;
  // Values of these keys, `[1, kv_heads, keys, dim_v]`. Since version 4.
  const struct FerroattnTensor *prefix_v;
  // Pages of k and v with such keys, `int32[n]` with stride 1, in place of `prefix_k` and `prefix_v`; `pages` are given, too. Since
  // version 4.
  const struct FerroattnTensor *prefix_pages;
  // Keys of `prefix_pages`, of which the last page has 1 or more; else 0. Since version 4.
  uint64_t prefix_keys;
  // Which `FerroattnFp8` rounds q, k and v to e4m3, which Hopper's tensor cores multiply at twice the rate. Such a call may
  // have a window, a softcap, sinks, sequences and first keys, no other option, and no gradients. Since version 5.
  uint32_t fp8;
  // Which `FerroattnE4m3` the inputs are. A call of such `Inputs` is in FP8; one of a `Cache` has no gradients, bias, mask or prefix, and
  // is not batch invariant. Since version 6; 0 before.
  uint32_t e4m3;
  // What multiplies q of e4m3, `float[batch, kv_heads]` of any strides; NULL for 1. Since version 6.
  const struct FerroattnTensor *q_descale;
  // What multiplies k of e4m3, likewise, or `float[pages, kv_heads]`. Since version 6.
  const struct FerroattnTensor *k_descale;
  // What multiplies v of e4m3, likewise. Since version 6.
  const struct FerroattnTensor *v_descale;
  // Whether each page of a cache has a row of `k_descale` and `v_descale`. Since version 6.
  uint32_t page_descales;
  // Whether o of a forward pass with `fp8` is `float` beside inputs of 16 bits. Since version 8; 0 before.
  uint32_t f32_o;
} FerroattnOptions;

// Tensors of a backward pass, and the options that its forward pass had.
typedef struct FerroattnBackward {
  // `sizeof(FerroattnBackward)`.
  uint32_t struct_size;
  // The `FerroattnDtype` of q, k, v, o, d_o, dq, dk and dv.
  uint32_t dtype;
  // Options; NULL if all are off.
  const struct FerroattnOptions *options;
  // Queries, `[batch, heads, seqlen_q, dim]`; like all tensors of four axes, with stride 1 in the last.
  struct FerroattnTensor q;
  // Keys, `[batch, kv_heads, seqlen_kv, dim]`.
  struct FerroattnTensor k;
  // Values, `[batch, kv_heads, seqlen_kv, dim_v]`.
  struct FerroattnTensor v;
  // Output of the forward pass, `[batch, heads, seqlen_q, dim_v]`.
  struct FerroattnTensor o;
  // Row log-sum-exp of the forward pass, `float[batch, heads, seqlen_q]`, contiguous.
  struct FerroattnTensor lse;
  // Gradient of o, `[batch, heads, seqlen_q, dim_v]`.
  struct FerroattnTensor d_o;
  // Gradient of q, an output like the following ones, `[batch, heads, seqlen_q, dim]`.
  struct FerroattnTensor dq;
  // Gradient of k, `[batch, kv_heads, seqlen_kv, dim]`.
  struct FerroattnTensor dk;
  // Gradient of v, `[batch, kv_heads, seqlen_kv, dim_v]`.
  struct FerroattnTensor dv;
  // Gradient of lse, an input, `float[batch, heads, seqlen_q]`, contiguous; NULL for zeros.
  const struct FerroattnTensor *d_lse;
  // Gradient of sinks, `float[heads]`; NULL if it is not wanted.
  const struct FerroattnTensor *d_sinks;
  // Gradient of the bias, `float[batch, heads, seqlen_q, seqlen_kv]`, summed over each of the first axes of extent 1; NULL if it
  // is not wanted.
  const struct FerroattnTensor *d_bias;
} FerroattnBackward;

// Pages of all entries one after another, and the table and lengths that they become. All tensors are `int32`, with stride 1 in the last
// axis. Since version 4.
//
// Entry `b` has pages `indices[indptr[b]]` to `indices[indptr[b + 1] - 1]`, in the order of its keys.
typedef struct FerroattnCsrPages {
  // `sizeof(FerroattnCsrPages)`.
  uint32_t struct_size;
  // Whether a GPU checks all numbers before it writes, and the call waits for that. The CPU always does.
  uint32_t check_lengths;
  // Keys of a page, a power of 2.
  uint64_t page;
  // Where the pages of each entry begin, and where the last one's end, `[batch + 1]`.
  struct FerroattnTensor indptr;
  // Page numbers, `[n]`.
  struct FerroattnTensor indices;
  // Keys of each entry's last page, `[batch]`.
  struct FerroattnTensor last_page;
  // The table, an output, `[batch, most]`. Numbers behind an entry's last page stay as they are.
  struct FerroattnTensor table;
  // Keys of each entry, another output, `[batch]`.
  struct FerroattnTensor lengths;
} FerroattnCsrPages;

// Tensors of a forward pass, `o = softmax(scale q k^T) v`, and its options.
typedef struct FerroattnForward {
  // `sizeof(FerroattnForward)`.
  uint32_t struct_size;
  // The `FerroattnDtype` of q, k, v and o; inputs of `FerroattnE4m3` are bytes.
  uint32_t dtype;
  // Options; NULL if all are off.
  const struct FerroattnOptions *options;
  // Queries, `[batch, heads, seqlen_q, dim]`; like k, v and o, with stride 1 in dim.
  struct FerroattnTensor q;
  // Keys, `[batch, kv_heads, seqlen_kv, dim]`.
  struct FerroattnTensor k;
  // Values, `[batch, kv_heads, seqlen_kv, dim_v]`.
  struct FerroattnTensor v;
  // Output, `[batch, heads, seqlen_q, dim_v]`; `float` where the options have `f32_o`.
  struct FerroattnTensor o;
  // Row log-sum-exp, another output, `float[batch, heads, seqlen_q]`, contiguous.
  struct FerroattnTensor lse;
} FerroattnForward;

// Tensors of a merge: the same queries' attention to two sets of keys becomes attention to all these keys.
//
// A part with an lse of -inf has no part in its row, whatever its o holds.
typedef struct FerroattnMerge {
  // `sizeof(FerroattnMerge)`.
  uint32_t struct_size;
  // The `FerroattnDtype` of o1, o2 and o.
  uint32_t dtype;
  // Output of the first part, `[batch, heads, seqlen, dim_v]`; like o2 and o, with stride 1 in dim_v.
  struct FerroattnTensor o1;
  // Row log-sum-exp of the first part, `float[batch, heads, seqlen]`; like lse2 and lse, contiguous.
  struct FerroattnTensor lse1;
  // Output of the second part, of o1's shape.
  struct FerroattnTensor o2;
  // Row log-sum-exp of the second part, of lse1's shape.
  struct FerroattnTensor lse2;
  // Merged output, of o1's shape.
  struct FerroattnTensor o;
  // Merged row log-sum-exp, another output, of lse1's shape.
  struct FerroattnTensor lse;
} FerroattnMerge;

// Tensors of a merge's gradient. The merged tensors themselves are not needed.
typedef struct FerroattnMergeBackward {
  // `sizeof(FerroattnMergeBackward)`.
  uint32_t struct_size;
  // The `FerroattnDtype` of o1, o2, d_o, d_o1 and d_o2.
  uint32_t dtype;
  // Output of the first part, `[batch, heads, seqlen, dim_v]`; like all tensors of four axes, with stride 1 in dim_v.
  struct FerroattnTensor o1;
  // Row log-sum-exp of the first part, `float[batch, heads, seqlen]`; like all tensors of three axes, contiguous.
  struct FerroattnTensor lse1;
  // Output of the second part, of o1's shape.
  struct FerroattnTensor o2;
  // Row log-sum-exp of the second part, of lse1's shape.
  struct FerroattnTensor lse2;
  // Gradient of the merged o, of o1's shape.
  struct FerroattnTensor d_o;
  // Gradient of o1, an output like the following ones, of o1's shape.
  struct FerroattnTensor d_o1;
  // Gradient of lse1, of its shape.
  struct FerroattnTensor d_lse1;
  // Gradient of o2, of o1's shape.
  struct FerroattnTensor d_o2;
  // Gradient of lse2, of lse1's shape.
  struct FerroattnTensor d_lse2;
  // Gradient of the merged lse, an input, of lse1's shape; NULL for zeros.
  const struct FerroattnTensor *d_lse;
} FerroattnMergeBackward;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Version of the interface that the library has, to compare with `FERROATTN_VERSION` of the header.
uint32_t ferroattn_version(void);

// Plans a call that appends, and writes the plan's handle. Plans may be made for tensors at address 0.
//
// # Safety
// `device` is NULL or an open device's, `args` and what it points to are NULL or valid. `plan` is NULL or may be written.
FerroattnStatus ferroattn_plan_append(const struct FerroattnDevice *device,
                                      const struct FerroattnAppend *args,
                                      struct FerroattnPlan **plan);

// Copies new keys and values to a cache, the keys rotated, without a workspace. On a GPU the call returns before the work is done.
//
// The stream is as for `ferroattn_forward`, which then reads the cache with the same pages or entries, and with new_lengths.
//
// # Safety
// - `device` is NULL or an open device's; `args` and what it points to are NULL or valid during the call.
// - Each element of the tensors is live memory of the device until the work is done. Elements have the types that the struct says.
// - Until then nothing else writes inputs, or touches the caches, rotated or new_lengths. None of these holds elements of other
//   tensors, but rotated may be q.
// - The stream is NULL or a live one of the device's primary context.
FerroattnStatus ferroattn_append(const struct FerroattnDevice *device,
                                 const struct FerroattnAppend *args,
                                 void *stream);

// Plans a backward pass, and writes the plan's handle. Plans may be made for tensors at address 0.
//
// # Safety
// `device` is NULL or an open device's, `args` and what it points to are NULL or valid. `plan` is NULL or may be written.
FerroattnStatus ferroattn_plan_backward(const struct FerroattnDevice *device,
                                        const struct FerroattnBackward *args,
                                        struct FerroattnPlan **plan);

// Computes the gradients. On a GPU the call returns before the work is done.
//
// Workspace and stream are as for `ferroattn_forward`.
//
// # Safety
// - `device` is NULL or an open device's; `args` and what it points to are NULL or valid during the call.
// - Each element of the tensors, and the workspace, are live memory of the device until the work is done. Elements have the types
//   that the structs say.
// - Until then nothing else writes inputs, or touches a gradient or the workspace. No element of a gradient is an element of
//   another tensor.
// - The stream is NULL or a live one of the device's primary context.
FerroattnStatus ferroattn_backward(const struct FerroattnDevice *device,
                                   const struct FerroattnBackward *args,
                                   uint64_t workspace,
                                   size_t workspace_bytes,
                                   void *stream);

// Plans a call that makes a table, and writes the plan's handle. Plans may be made for tensors at address 0. Since version 4.
//
// # Safety
// `device` is NULL or an open device's, `args` is NULL or valid. `plan` is NULL or may be written.
FerroattnStatus ferroattn_plan_csr_pages(const struct FerroattnDevice *device,
                                         const struct FerroattnCsrPages *args,
                                         struct FerroattnPlan **plan);

// Writes the table and the lengths, which `ferroattn_forward` then reads as `pages` and `sequences_kv`, without a workspace. On a GPU the
// call returns before the work is done.
//
// Since version 4. The stream is as for `ferroattn_forward`.
//
// # Safety
// - `device` is NULL or an open device's; `args` is NULL or valid during the call.
// - Each element of the tensors is live memory of the device until the work is done.
// - Until then nothing else writes inputs, or touches the table or the lengths, which hold no elements of other tensors.
// - The stream is NULL or a live one of the device's primary context.
FerroattnStatus ferroattn_csr_pages(const struct FerroattnDevice *device,
                                    const struct FerroattnCsrPages *args,
                                    void *stream);

// Opens the CUDA device of an index, and writes its handle.
//
// Its addresses and streams are those of the device's primary context, which the CUDA runtime uses.
//
// # Safety
// `device` is NULL or may be written.
FerroattnStatus ferroattn_open_cuda(uint32_t index, struct FerroattnDevice **device);

// Opens the CPU, and writes its handle. Addresses are those of the host.
//
// # Safety
// `device` is NULL or may be written.
FerroattnStatus ferroattn_open_cpu(struct FerroattnDevice **device);

// Opens a new emulated A100, and writes its handle: it checks each access of the kernels, and is slow.
//
// Only `ferroattn_alloc` gives memory of it.
//
// # Safety
// `device` is NULL or may be written.
FerroattnStatus ferroattn_open_emulator(struct FerroattnDevice **device);

// Closes a device and frees its memory of `ferroattn_alloc`, after all queued work; NULL is fine.
//
// # Safety
// The handle is NULL, or an opened device's that no other call uses, now or later.
void ferroattn_close(struct FerroattnDevice *device);

// Marketing name of a GPU, `CPU` or `emulator`; NULL of NULL. It is valid until the device is closed.
//
// # Safety
// The handle is NULL or an open device's.
const char *ferroattn_device_name(const struct FerroattnDevice *device);

// Waits until all work on the device is done, of all streams.
//
// # Safety
// The handle is NULL or an open device's.
FerroattnStatus ferroattn_synchronize(const struct FerroattnDevice *device);

// Plans a forward pass, and writes the plan's handle. Plans may be made for tensors at address 0.
//
// # Safety
// `device` is NULL or an open device's, `args` and what it points to are NULL or valid. `plan` is NULL or may be written.
FerroattnStatus ferroattn_plan_forward(const struct FerroattnDevice *device,
                                       const struct FerroattnForward *args,
                                       struct FerroattnPlan **plan);

// Computes o and lse. On a GPU the call returns before the work is done.
//
// The workspace is as many bytes as a plan of the call says, or more, at a multiple of 256. With address and bytes 0, the
// library allocates and frees it in the order of the stream. The stream is a `CUstream`, NULL for the default stream.
//
// # Safety
// - `device` is NULL or an open device's; `args` and what it points to are NULL or valid during the call.
// - Each element of the tensors, and the workspace, are live memory of the device until the work is done. Elements have the types
//   that the structs say.
// - Until then nothing else writes inputs, or touches o, lse or the workspace. Neither o nor lse, from its first element to its
//   last, holds elements of other tensors.
// - The stream is NULL or a live one of the device's primary context.
FerroattnStatus ferroattn_forward(const struct FerroattnDevice *device,
                                  const struct FerroattnForward *args,
                                  uint64_t workspace,
                                  size_t workspace_bytes,
                                  void *stream);

// Allocates bytes of the device, zeros, at a multiple of 256, and writes their address.
//
// # Safety
// `device` is NULL or an open device's, and `address` is NULL or may be written.
FerroattnStatus ferroattn_alloc(const struct FerroattnDevice *device,
                                size_t bytes,
                                uint64_t *address);

// Copies host memory to memory of `ferroattn_alloc`, in the order of the default stream.
//
// # Safety
// `device` is NULL or an open device's; `data` is NULL or has as many bytes, which do not overlap with those at the address. Work of other streams with the memory is done.
FerroattnStatus ferroattn_upload(const struct FerroattnDevice *device,
                                 uint64_t address,
                                 const void *data,
                                 size_t bytes);

// Copies memory of `ferroattn_alloc` to the host, after all work on the default stream.
//
// # Safety
// `device` is NULL or an open device's; `data` is NULL, or as many bytes of it may be written. Work of other streams with the
// memory is done.
FerroattnStatus ferroattn_download(const struct FerroattnDevice *device,
                                   void *data,
                                   uint64_t address,
                                   size_t bytes);

// Frees memory of `ferroattn_alloc`, by the address that it gave, after all work of the device; 0 is fine.
//
// # Safety
// `device` is NULL or an open device's, and no later work uses the memory.
FerroattnStatus ferroattn_free(const struct FerroattnDevice *device,
                               uint64_t address);

// Plans a merge, and writes the plan's handle. Plans may be made for tensors at address 0.
//
// # Safety
// `device` is NULL or an open device's, and `args` is NULL or valid. `plan` is NULL or may be written.
FerroattnStatus ferroattn_plan_merge(const struct FerroattnDevice *device,
                                     const struct FerroattnMerge *args,
                                     struct FerroattnPlan **plan);

// Plans a merge's gradient, and writes the plan's handle. Plans may be made for tensors at address 0.
//
// # Safety
// `device` is NULL or an open device's, `args` and what it points to are NULL or valid. `plan` is NULL or may be written.
FerroattnStatus ferroattn_plan_merge_backward(const struct FerroattnDevice *device,
                                              const struct FerroattnMergeBackward *args,
                                              struct FerroattnPlan **plan);

// Merges two partial results into o and lse, without a workspace. On a GPU the call returns before the work is done.
//
// The stream is as for `ferroattn_forward`. More parts are merged one after the other.
//
// # Safety
// - `device` is NULL or an open device's; `args` is NULL or valid during the call.
// - Each element of the tensors is live memory of the device until the work is done. Elements have the types that the struct says.
// - Until then nothing else writes the parts, or touches o or lse. Neither o nor lse, from its first element to its last, holds
//   elements of other tensors.
// - The stream is NULL or a live one of the device's primary context.
FerroattnStatus ferroattn_merge(const struct FerroattnDevice *device,
                                const struct FerroattnMerge *args,
                                void *stream);

// Computes the gradients of both parts of a merge, without a workspace. On a GPU the call returns before the work is done.
//
// The stream is as for `ferroattn_forward`. `ferroattn_backward` takes the gradients of a part as its d_o and d_lse.
//
// # Safety
// - `device` is NULL or an open device's; `args` and what it points to are NULL or valid during the call.
// - Each element of the tensors is live memory of the device until the work is done. Elements have the types that the struct says.
// - Until then nothing else writes inputs, or touches a gradient of a part. No such gradient, from its first element to its last,
//   holds elements of other tensors.
// - The stream is NULL or a live one of the device's primary context.
FerroattnStatus ferroattn_merge_backward(const struct FerroattnDevice *device,
                                         const struct FerroattnMergeBackward *args,
                                         void *stream);

// Writes options that are all off, and their size, which is `sizeof(FerroattnOptions)`.
//
// # Safety
// `options` is NULL, or so many bytes of it may be written.
FerroattnStatus ferroattn_options_init(struct FerroattnOptions *options, uint32_t struct_size);

// Bytes of the workspace that the planned call needs; 0 of NULL.
//
// # Safety
// The handle is NULL or that of a plan.
size_t ferroattn_plan_workspace_bytes(const struct FerroattnPlan *plan);

// Splits of the keys of the planned call, 1 where nothing is split; 0 of NULL.
//
// # Safety
// The handle is NULL or that of a plan.
uint32_t ferroattn_plan_splits(const struct FerroattnPlan *plan);

// Name of the kernel that does the work, `cpu` on the CPU; NULL of NULL. It is valid until the plan is freed.
//
// # Safety
// The handle is NULL or that of a plan.
const char *ferroattn_plan_kernel(const struct FerroattnPlan *plan);

// Frees a plan; NULL is fine.
//
// # Safety
// The handle is NULL, or that of a plan that no other call uses, now or later.
void ferroattn_plan_free(struct FerroattnPlan *plan);

// Loads the kernels of plans, several at once, and launches nothing: no call with such a plan then waits for a compiler.
//
// # Safety
// `device` is NULL or an open device's; `plans` is NULL or has `count` handles, each NULL or that of a plan.
FerroattnStatus ferroattn_prepare(const struct FerroattnDevice *device,
                                  const struct FerroattnPlan *const *plans,
                                  size_t count);

// Reason of this thread's last call that failed, in one line; empty if none has. It is valid until the thread's next call.
const char *ferroattn_last_error(void);

// Name of a status, as a constant text; `unknown` of another number.
const char *ferroattn_status_name(int32_t status);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FERROATTN_H */
