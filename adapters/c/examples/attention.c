// Attention, its gradients, and o from a cache of e4m3 through ferroattn.h, beside plain loops: on the CPU, an emulated GPU or a GPU.
//
// attention [cpu | emulator | INDEX OF A CUDA DEVICE]

#include "ferroattn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, ROWS = 50, KEYS = 70, DIM = 64 };

static FerroattnDevice *device;

// Ends the program with the library's reason if a call failed.
static void check(FerroattnStatus status) {
  if (status != FERROATTN_STATUS_OK) {
    fprintf(stderr, "%s: %s\n", ferroattn_status_name(status), ferroattn_last_error());
    exit(1);
  }
}

// An array [batch, rows, heads, dim] of bf16 on the device, and its numbers on the host.
typedef struct {
  int heads, rows;
  double *numbers;
  FerroattnTensor tensor;
} Array;

static size_t length(const Array *array) {
  return (size_t)BATCH * array->rows * array->heads * DIM;
}

static double *at(const Array *array, int batch, int head, int row) {
  return array->numbers + (((size_t)batch * array->rows + row) * array->heads + head) * DIM;
}

static void *reserve(size_t count, size_t size) {
  void *memory = calloc(count, size);
  if (memory == NULL) {
    fprintf(stderr, "no memory on the host\n");
    exit(1);
  }
  return memory;
}

static double from_bf16(uint16_t number) {
  uint32_t bits = (uint32_t)number << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Cuts digits off: numbers that bf16 holds stay.
static uint16_t to_bf16(double number) {
  float value = (float)number;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static Array zeros(int heads, int rows) {
  Array array = {heads, rows, NULL, {0, {BATCH, heads, rows, DIM}, {0, DIM, heads * DIM, 1}}};
  array.tensor.strides[0] = (int64_t)rows * heads * DIM;
  array.numbers = reserve(length(&array), sizeof *array.numbers);
  check(ferroattn_alloc(device, length(&array) * sizeof(uint16_t), &array.tensor.address));
  return array;
}

// Numbers from -1 to 1.
static Array numbers(int heads, int rows) {
  static uint32_t state = 1;
  Array array = zeros(heads, rows);
  uint16_t *data = reserve(length(&array), sizeof *data);
  for (size_t i = 0; i < length(&array); i++) {
    state = state * 1664525u + 1013904223u;
    data[i] = to_bf16((state >> 8) / 8388608.0 - 1.0);
    array.numbers[i] = from_bf16(data[i]);
  }
  check(ferroattn_upload(device, array.tensor.address, data, length(&array) * sizeof *data));
  free(data);
  return array;
}

static void release(Array *array) {
  check(ferroattn_free(device, array->tensor.address));
  free(array->numbers);
}

static double dot(const double *a, const double *b) {
  double sum = 0.0;
  for (int d = 0; d < DIM; d++) {
    sum += a[d] * b[d];
  }
  return sum;
}

// Adds a row times a factor to another.
static void add(double *to, double factor, const double *row) {
  for (int d = 0; d < DIM; d++) {
    to[d] += factor * row[d];
  }
}

// q, k, v, o, d_o, dq, dk, dv.
typedef struct {
  Array q, k, v, o, d_o, dq, dk, dv;
} Arrays;

// One row of causal attention and its part of the gradients, by their definition. Gives lse.
static double plain_row(const Arrays *all, int batch, int head, int row) {
  const double scale = 1.0 / sqrt((double)DIM);
  const int kv_head = head / (HEADS / KV_HEADS), end = row + KEYS - ROWS + 1;
  const double *q = at(&all->q, batch, head, row), *d_o = at(&all->d_o, batch, head, row);
  double *o = at(&all->o, batch, head, row), p[KEYS], sum = 0.0;
  for (int key = 0; key < end; key++) {
    sum += p[key] = exp(scale * dot(q, at(&all->k, batch, kv_head, key)));
  }
  for (int key = 0; key < end; key++) {
    p[key] /= sum;
    add(o, p[key], at(&all->v, batch, kv_head, key));
  }
  const double delta = dot(d_o, o);
  for (int key = 0; key < end; key++) {
    const double *k = at(&all->k, batch, kv_head, key), *v = at(&all->v, batch, kv_head, key);
    const double ds = scale * p[key] * (dot(d_o, v) - delta);
    add(at(&all->dq, batch, head, row), ds, k);
    add(at(&all->dk, batch, kv_head, key), ds, q);
    add(at(&all->dv, batch, kv_head, key), p[key], d_o);
  }
  return log(sum);
}

// Says how far found numbers are from expected ones: so much of the largest is allowed.
static int compare(const char *name, const double *expected, const double *found, size_t count, double allowed) {
  double largest = 0.0, error = 0.0;
  for (size_t i = 0; i < count; i++) {
    largest = fmax(largest, fabs(expected[i]));
    const double off = fabs(found[i] - expected[i]);
    // Not a number is as wrong as can be.
    error = off >= 0.0 ? fmax(error, off) : INFINITY;
  }
  const int passed = error <= allowed * largest;
  printf("%-4s largest error %.1e of %.2f%s\n", name, error, largest, passed ? "" : ": WRONG");
  return passed;
}

static int compare_array(const char *name, const Array *array, double allowed) {
  const size_t count = length(array);
  uint16_t *data = reserve(count, sizeof *data);
  double *found = reserve(count, sizeof *found);
  check(ferroattn_download(device, data, array->tensor.address, count * sizeof *data));
  for (size_t i = 0; i < count; i++) {
    found[i] = from_bf16(data[i]);
  }
  const int passed = compare(name, array->numbers, found, count, allowed);
  free(data);
  free(found);
  return passed;
}

// A workspace for a plan, whose kernels are loaded and which is then freed.
static uint64_t workspace_of(const char *pass, FerroattnPlan *plan, size_t *bytes) {
  uint64_t address = 0;
  const FerroattnPlan *plans[] = {plan};
  check(ferroattn_prepare(device, plans, 1));
  *bytes = ferroattn_plan_workspace_bytes(plan);
  printf("%s: %s, workspace of %zu bytes\n", pass, ferroattn_plan_kernel(plan), *bytes);
  if (*bytes > 0) {
    check(ferroattn_alloc(device, *bytes, &address));
  }
  ferroattn_plan_free(plan);
  return address;
}

static void compute(const Arrays *all, FerroattnTensor lse) {
  FerroattnOptions options;
  check(ferroattn_options_init(&options, sizeof options));
  options.causal = 1;
  options.splits = 2;
  FerroattnPlan *plan;
  size_t bytes;

  FerroattnForward forward = {sizeof forward,  FERROATTN_DTYPE_BF16, &options,      all->q.tensor,
                              all->k.tensor, all->v.tensor,        all->o.tensor, lse};
  check(ferroattn_plan_forward(device, &forward, &plan));
  uint64_t workspace = workspace_of("forward", plan, &bytes);
  check(ferroattn_forward(device, &forward, workspace, bytes, NULL));
  check(ferroattn_free(device, workspace));

  FerroattnBackward backward;
  memset(&backward, 0, sizeof backward);
  backward.struct_size = sizeof backward;
  backward.dtype = FERROATTN_DTYPE_BF16;
  backward.options = &options;
  backward.q = all->q.tensor;
  backward.k = all->k.tensor;
  backward.v = all->v.tensor;
  backward.o = all->o.tensor;
  backward.lse = lse;
  backward.d_o = all->d_o.tensor;
  backward.dq = all->dq.tensor;
  backward.dk = all->dk.tensor;
  backward.dv = all->dv.tensor;
  check(ferroattn_plan_backward(device, &backward, &plan));
  workspace = workspace_of("backward", plan, &bytes);
  check(ferroattn_backward(device, &backward, workspace, bytes, NULL));
  check(ferroattn_free(device, workspace));
}

// A cache of e4m3, in bytes, for as many keys or values.
static FerroattnTensor cache_for(const Array *array) {
  FerroattnTensor cache = array->tensor;
  check(ferroattn_alloc(device, length(array), &cache.address));
  return cache;
}

// Writes k and v to a cache of half the bytes, and compares the o that it gives: numbers of e4m3 are off by up to 1/16.
static int compare_cached(const Arrays *all, FerroattnTensor lse) {
  // k and v, from -1 to 1, become numbers up to 256. One factor is that of all heads.
  const float factor = 1.0f / 256.0f;
  FerroattnTensor descale = {0, {BATCH, KV_HEADS, 0, 0}, {0, 0, 0, 0}};
  check(ferroattn_alloc(device, sizeof factor, &descale.address));
  check(ferroattn_upload(device, descale.address, &factor, sizeof factor));
  const FerroattnTensor k_cache = cache_for(&all->k), v_cache = cache_for(&all->v);
  Array o = zeros(HEADS, ROWS);
  memcpy(o.numbers, all->o.numbers, length(&o) * sizeof *o.numbers);

  FerroattnAppend append;
  memset(&append, 0, sizeof append);
  append.struct_size = sizeof append;
  append.dtype = FERROATTN_DTYPE_BF16;
  append.k = all->k.tensor;
  append.v = all->v.tensor;
  append.k_cache = k_cache;
  append.v_cache = v_cache;
  append.k_descale = append.v_descale = &descale;
  append.e4m3_cache = 1;
  const FerroattnStatus status = ferroattn_append(device, &append, NULL);
  int passed = 1;
  if (status == FERROATTN_STATUS_UNSUPPORTED) {
    printf("caches of e4m3: %s\n", ferroattn_last_error());
  } else {
    check(status);
    FerroattnOptions options;
    check(ferroattn_options_init(&options, sizeof options));
    options.causal = 1;
    options.e4m3 = FERROATTN_E4M3_CACHE;
    options.k_descale = options.v_descale = &descale;
    const FerroattnForward forward = {sizeof forward, FERROATTN_DTYPE_BF16, &options, all->q.tensor,
                                      k_cache,        v_cache,              o.tensor, lse};
    check(ferroattn_forward(device, &forward, 0, 0, NULL));
    passed = compare_array("o of e4m3", &o, 0.06);
  }
  release(&o);
  check(ferroattn_free(device, k_cache.address));
  check(ferroattn_free(device, v_cache.address));
  check(ferroattn_free(device, descale.address));
  return passed;
}

int main(int argc, char **argv) {
  const char *wanted = argc > 1 ? argv[1] : "cpu";
  if (strcmp(wanted, "cpu") == 0) {
    check(ferroattn_open_cpu(&device));
  } else if (strcmp(wanted, "emulator") == 0) {
    check(ferroattn_open_emulator(&device));
  } else {
    check(ferroattn_open_cuda((uint32_t)atoi(wanted), &device));
  }
  printf("version %u on %s\n", ferroattn_version(), ferroattn_device_name(device));

  Arrays all = {numbers(HEADS, ROWS), numbers(KV_HEADS, KEYS), numbers(KV_HEADS, KEYS),
                zeros(HEADS, ROWS),   numbers(HEADS, ROWS),    zeros(HEADS, ROWS),
                zeros(KV_HEADS, KEYS), zeros(KV_HEADS, KEYS)};
  enum { LSE = BATCH * HEADS * ROWS };
  FerroattnTensor lse = {0, {BATCH, HEADS, ROWS, 0}, {HEADS * ROWS, ROWS, 1, 0}};
  check(ferroattn_alloc(device, LSE * sizeof(float), &lse.address));
  compute(&all, lse);

  static double expected[LSE], found[LSE];
  static float data[LSE];
  for (int i = 0; i < LSE; i++) {
    expected[i] = plain_row(&all, i / (HEADS * ROWS), i / ROWS % HEADS, i % ROWS);
  }
  check(ferroattn_download(device, data, lse.address, sizeof data));
  for (int i = 0; i < LSE; i++) {
    found[i] = data[i];
  }
  int passed = compare("lse", expected, found, LSE, 0.02);
  passed &= compare_array("o", &all.o, 0.02);
  passed &= compare_array("dq", &all.dq, 0.02);
  passed &= compare_array("dk", &all.dk, 0.02);
  passed &= compare_array("dv", &all.dv, 0.02);
  passed &= compare_cached(&all, lse);

  Array *arrays[] = {&all.q, &all.k, &all.v, &all.o, &all.d_o, &all.dq, &all.dk, &all.dv};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
    release(arrays[i]);
  }
  check(ferroattn_free(device, lse.address));
  ferroattn_close(device);
  return passed ? 0 : 1;
}
