// selection_ranges: q [B,S,G,H,D], k [B,G,S_kv,D], v [B,G,S_kv,DV], spans [B,S,G,n,2] of int64
// (wide) or int32. SPANS, a power of two of at least 32, is the largest n.
// Block (row, split, head tile of 16); row = (b * S + s) * G + g.
//
// Every warp makes the row's spans disjoint by itself: sorted by start, each begins where the
// earlier ones end. It numbers their keys 0 .. total - 1 without gaps, in the order in which the
// spans are given. A tile takes the next KEYS numbers, so short spans waste no part of it.

constexpr int MINE = SPANS / 32;  // spans of a lane: lane, lane + 32, ...
constexpr int MIN_SHARE = 128;

// The keys of a tile, one per lane.
struct Numbered {
  int mine;
  __device__ __forceinline__ int key(int row) const { return __shfl_sync(~0u, mine, row); }
};

// Returns one bound of a span, clamped to 0 .. length.
__device__ __forceinline__ int edge(const void *spans, bool wide, i64 at, int length) {
  const i64 value = wide ? static_cast<const i64 *>(spans)[at] : static_cast<const int *>(spans)[at];
  return static_cast<int>(min(max(value, i64(0)), i64(length)));
}

// Fills `numbers` [SPANS], in shared memory of this warp, with (the number after the span's last
// key, the position of a key minus its number). Returns the total number of keys.
__device__ __forceinline__ int number_spans(int2 *numbers, const void *spans, bool wide, i64 at,
                                            i64 span_step, i64 edge_step, int n, int length) {
  const int lane = threadIdx.x % 32;
  int low[MINE], high[MINE];
#pragma unroll
  for (int j = 0; j < MINE; j++) {
    const int i = j * 32 + lane;
    // Absent spans are empty and come last.
    low[j] = i < n ? edge(spans, wide, at + i * span_step, length) : length;
    high[j] = i < n ? edge(spans, wide, at + i * span_step + edge_step, length) : length;
    numbers[i] = make_int2(low[j], high[j]);
  }
  __syncwarp();
  int reach[MINE] = {};
  for (int other = 0; other < n; other++) {
    const int2 span = numbers[other];
#pragma unroll
    for (int j = 0; j < MINE; j++) {
      const bool earlier = span.x < low[j] || (span.x == low[j] && other < j * 32 + lane);
      if (earlier) reach[j] = max(reach[j], span.y);
    }
  }
  __syncwarp();
  int total = 0;
#pragma unroll
  for (int j = 0; j < MINE; j++) {
    const int start = max(low[j], reach[j]), keys = max(high[j] - start, 0);
    int stop = keys;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(~0u, stop, step);
      if (lane >= step) stop += before;
    }
    stop += total;
    total = __shfl_sync(~0u, stop, 31);
    numbers[j * 32 + lane] = make_int2(stop, start - (stop - keys));
  }
  __syncwarp();
  return total;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    ranges_cuda_kernel(const u16 *q, const char *k, const char *v, const void *spans, u16 *out, float *lse,
           float *part, float *plse, int *table, i64 q_sb, i64 q_ss, i64 q_sg, i64 q_sh, i64 k_sb,
           i64 k_sg, i64 k_sl, i64 v_sb, i64 v_sg, i64 v_sl, i64 r_sb, i64 r_ss, i64 r_sg, i64 r_sn,
           i64 r_se, i64 wide, i64 S, i64 G, i64 H, i64 S_kv, i64 n_spans, double scale_log2) {
  __shared__ int2 numbers[WARPS][SPANS];
  start_next_launch();
  const i64 r = blockIdx.x, g = r % G, s = r / G % S, b = r / G / S;
  const int split = blockIdx.y, splits = gridDim.y;
  const int head = blockIdx.z * HEADS, count = min(static_cast<int>(H) - head, HEADS);
  int2 *mine = numbers[threadIdx.x / 32];
  const int total =
      number_spans(mine, spans, wide != 0, b * r_sb + s * r_ss + g * r_sg, r_sn, r_se,
                   static_cast<int>(n_spans), static_cast<int>(S_kv));
  // Equal shares of whole tiles, none so short that merging it costs more than it saves.
  const int share = (total + splits - 1) / splits;
  const int chunk = max((share + KEYS - 1) / KEYS * KEYS, MIN_SHARE);
  const int shares = max((total + chunk - 1) / chunk, 1);
  if (split >= shares) return;
  const int lo = split * chunk, hi = min(lo + chunk, total);
  const KeysAndValues kv = {k + (b * k_sb + g * k_sg) * 2, k_sl * 2,
                            v + (b * v_sb + g * v_sg) * 2, v_sl * 2};
  auto find = [&](int first) {
    const int number = first + static_cast<int>(threadIdx.x) % 32;
    int at = 0;  // the first span that ends after the number
#pragma unroll
    for (int step = SPANS / 2; step > 0; step /= 2)
      if (mine[at + step - 1].x <= number) at += step;
    return Numbered{number < hi ? number + mine[at].y : -1};
  };
  State state;
  attend(state, kv, q + b * q_sb + s * q_ss + g * q_sg + head * q_sh, q_sh, count, lo, hi,
         static_cast<float>(scale_log2), find);
  Target target = {out + (r * H + head) * DV, lse + r * H + head, nullptr, nullptr};
  if (splits > 1) {
    const i64 slot = r * splits + split;
    if (split == 0 && head == 0 && threadIdx.x == 0) {
      table[r * 2] = static_cast<int>(slot);
      table[r * 2 + 1] = shares;
    }
    if (shares > 1) {
      const i64 at = slot * H + head;
      target.part = part + at * DV;
      target.plse = plse + at;
    }
  }
  store(state, target, count);
}
