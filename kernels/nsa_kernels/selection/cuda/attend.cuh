// Code that both kernels share: a thread block attends with 16 heads to the keys it is given.
//
// Macros, defined by the compiler's options: D, DV (head dims, 64 or 128), BF16 (0: fp16), WARPS,
// KEYS (of a tile, a multiple of 16 up to 32), STAGES (tiles per warp in shared memory, 2 or more).
// No CUDA header is needed.
//
// Each warp takes every WARPS-th tile of keys and has its own buffers and its own softmax state, so
// no warp waits for another until the end. Fragments of mma.m16n8k16 (PTX ISA, "Matrix fragments"):
// with g = lane / 4 and t = lane % 4 a thread holds rows g and g + 8, columns 2t and 2t + 1.

typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;

constexpr int HEADS = 16;  // rows of an mma
constexpr int K_BYTES = D * 2, V_BYTES = DV * 2;
constexpr int K_TILE = KEYS * K_BYTES, STAGE = K_TILE + KEYS * V_BYTES;
constexpr int PADDED = DV + 8;  // floats of a row in `store`, padded against bank conflicts
#define NOTHING __int_as_float(0xff800000)  // -inf

static_assert(D % 64 == 0 && DV % 64 == 0 && KEYS % 16 == 0 && KEYS <= 32 && STAGES >= 2, "");
static_assert(HEADS * PADDED * 4 <= STAGES * STAGE, "outputs must fit in the buffers of a warp");

extern __shared__ __align__(128) char shared[];

__device__ __forceinline__ u32 shared_address(const void *pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes from global to shared memory; writes zeros if not ok.
__device__ __forceinline__ void copy_16(u32 to, const char *from, bool ok) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(ok ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LEFT>
__device__ __forceinline__ void wait_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ __forceinline__ void load_matrices(u32 (&x)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(u32 (&x)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if BF16
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#endif
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Returns two numbers rounded to the inputs' type, the first in the lower half.
__device__ __forceinline__ u32 pack(float low, float high) {
  u32 both;
#if BF16
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
  return both;
}

__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log_2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Returns the offset of chunk `chunk` (16 bytes) of row `row`. The chunks of a row are permuted, so
// that the 8 rows that one ldmatrix reads are in 8 different groups of banks.
template <int ROW_BYTES>
__device__ __forceinline__ u32 place(int row, int chunk) {
  return row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
}

template <int ROW_BYTES, class Tile>
__device__ __forceinline__ void copy_rows(u32 to, const char *base, i64 step, Tile tile) {
  constexpr int CHUNKS = ROW_BYTES / 16;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < KEYS * CHUNKS / 32; i++) {
    const int row = (i * 32 + lane) / CHUNKS, chunk = (i * 32 + lane) % CHUNKS;
    const int key = tile.key(row);
    const char *from = base + static_cast<i64>(max(key, 0)) * step + chunk * 16;
    copy_16(to + place<ROW_BYTES>(row, chunk), from, key >= 0);
  }
}

// K and V of a KV head, and the bytes from one key to the next.
struct KeysAndValues {
  const char *k;
  i64 k_step;
  const char *v;
  i64 v_step;
};

// Loads q of 16 heads as A fragments; heads from `count` on are 0. `step`: elements between heads.
__device__ __forceinline__ void load_queries(u32 (&q)[D / 16][4], const u16 *base, i64 step,
                                             int count) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < D / 16; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int head = g + j % 2 * 8;
      const u16 *at = base + head * step + i * 16 + j / 2 * 8 + t * 2;
      q[i][j] = head < count ? *reinterpret_cast<const u32 *>(at) : 0;
    }
}

// A thread's state for heads g and g + 8: the warp's largest logit (log2 domain), and this thread's
// part of the sum and of the output.
struct State {
  float top[2] = {NOTHING, NOTHING};
  float sum[2] = {0.f, 0.f};
  float out[DV / 8][4] = {};
};

// Attends to a tile in shared memory. Only its first `live` keys count, at least one.
__device__ __forceinline__ void attend_tile(State &state, const u32 (&q)[D / 16][4], u32 tile,
                                            int live, float scale) {
  const int lane = threadIdx.x % 32;
  float s[KEYS / 8][4] = {};
  u32 b[4];
#pragma unroll
  for (int i = 0; i < D / 16; i++)
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
      const int row = j * 16 + lane / 16 * 8 + lane % 8;
      load_matrices(b, tile + place<K_BYTES>(row, i * 2 + lane / 8 % 2));
      multiply(s[j * 2], q[i], b[0], b[1]);
      multiply(s[j * 2 + 1], q[i], b[2], b[3]);
    }
#pragma unroll
  for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) s[i][j] *= scale;
  if (live < KEYS) {
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (i * 8 + lane % 4 * 2 + j % 2 >= live) s[i][j] = NOTHING;
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float top = state.top[r];
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++) top = fmaxf(top, fmaxf(s[i][r * 2], s[i][r * 2 + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float less = power_of_2(state.top[r] - top);
    state.top[r] = top;
    state.sum[r] *= less;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++) {
      s[i][r * 2] = power_of_2(s[i][r * 2] - top);
      s[i][r * 2 + 1] = power_of_2(s[i][r * 2 + 1] - top);
      state.sum[r] += s[i][r * 2] + s[i][r * 2 + 1];
    }
#pragma unroll
    for (int i = 0; i < DV / 8; i++) {
      state.out[i][r * 2] *= less;
      state.out[i][r * 2 + 1] *= less;
    }
  }
#pragma unroll
  for (int j = 0; j < KEYS / 16; j++) {
    const u32 p[4] = {pack(s[j * 2][0], s[j * 2][1]), pack(s[j * 2][2], s[j * 2][3]),
                      pack(s[j * 2 + 1][0], s[j * 2 + 1][1]),
                      pack(s[j * 2 + 1][2], s[j * 2 + 1][3])};
#pragma unroll
    for (int i = 0; i < DV / 16; i++) {
      const int row = j * 16 + lane % 16;
      load_matrices_transposed(b, tile + K_TILE + place<V_BYTES>(row, i * 2 + lane / 16));
      multiply(state.out[i * 2], p, b[0], b[1]);
      multiply(state.out[i * 2 + 1], p, b[2], b[3]);
    }
  }
}

// Attends to this warp's tiles of the keys numbered lo .. hi - 1. `find(first)` returns an object
// for the tile that begins at number `first`: its key(row) is the position of a key, or -1 from hi.
template <class Find>
__device__ __forceinline__ void attend(State &state, const KeysAndValues &kv, const u16 *q_base,
                                       i64 q_step, int count, int lo, int hi, float scale,
                                       Find find) {
  constexpr int AHEAD = STAGES - 1, STEP = WARPS * KEYS;
  const int warp = threadIdx.x / 32;
  const u32 buffers = shared_address(shared) + warp * STAGES * STAGE;
  int asked = lo + warp * KEYS, to = 0, from = 0;
  auto ask = [&] {
    if (asked < hi) {
      const auto tile = find(asked);
      copy_rows<K_BYTES>(buffers + to, kv.k, kv.k_step, tile);
      copy_rows<V_BYTES>(buffers + to + K_TILE, kv.v, kv.v_step, tile);
    }
    close_group();  // past the end it is empty, so that wait_groups can still count
    asked += STEP;
    to = to == AHEAD * STAGE ? 0 : to + STAGE;
  };
  for (int i = 0; i < AHEAD; i++) ask();
  u32 q[D / 16][4];
  load_queries(q, q_base, q_step, count);
  for (int first = lo + warp * KEYS; first < hi; first += STEP) {
    wait_groups<AHEAD - 1>();
    __syncwarp();  // all lanes see the tile, and none reads the buffer that ask() fills
    ask();
    attend_tile(state, q, buffers + from, hi - first, scale);
    from = from == AHEAD * STAGE ? 0 : from + STAGE;
  }
  wait_groups<0>();
#pragma unroll
  for (int r = 0; r < 2; r++) {
    state.sum[r] += __shfl_xor_sync(~0u, state.sum[r], 1);
    state.sum[r] += __shfl_xor_sync(~0u, state.sum[r], 2);
  }
}

// Where the result of a thread block goes: the row itself, or a share of it for the merge.
struct Target {
  u16 *out;     // [heads, DV]
  float *lse;   // [heads], natural logarithm
  float *part;  // [heads, DV] normalised; null: not a share
  float *plse;  // [heads], log2
};

// Merges the states of all warps, and stores the result.
__device__ __forceinline__ void store(const State &state, const Target &target, int count) {
  __shared__ float tops[WARPS][HEADS], sums[WARPS][HEADS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  __syncwarp();
  float *mine = reinterpret_cast<float *>(shared + warp * STAGES * STAGE);
#pragma unroll
  for (int r = 0; r < 2; r++) {
#pragma unroll
    for (int i = 0; i < DV / 8; i++)
      *reinterpret_cast<float2 *>(mine + (g + r * 8) * PADDED + i * 8 + t * 2) =
          make_float2(state.out[i][r * 2], state.out[i][r * 2 + 1]);
    if (t == 0) {
      tops[warp][g + r * 8] = state.top[r];
      sums[warp][g + r * 8] = state.sum[r];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count * (DV / 2); i += WARPS * 32) {
    const int head = i / (DV / 2), column = i % (DV / 2) * 2;
    float top = NOTHING, sum = 0.f, x = 0.f, y = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w][head]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float weight = tops[w][head] == NOTHING ? 0.f : power_of_2(tops[w][head] - top);
      const float2 theirs = *reinterpret_cast<const float2 *>(
          shared + w * STAGES * STAGE + (head * PADDED + column) * 4);
      sum += sums[w][head] * weight;
      x += theirs.x * weight;
      y += theirs.y * weight;
    }
    const bool some = top != NOTHING;  // if there is a key, the sum is at least 1
    x = some ? x / sum : 0.f;
    y = some ? y / sum : 0.f;
    const float log_sum = top + log_2(sum);
    if (target.part != nullptr) {
      *reinterpret_cast<float2 *>(target.part + head * DV + column) = make_float2(x, y);
      if (column == 0) target.plse[head] = log_sum;
    } else {
      *reinterpret_cast<u32 *>(target.out + head * DV + column) = pack(x, y);
      if (column == 0) target.lse[head] = some ? log_sum * 0.6931471805599453f : NOTHING;
    }
  }
}

// Lets the merge, a dependent launch, start its programs, which then wait for the end of this grid.
__device__ __forceinline__ void start_next_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
