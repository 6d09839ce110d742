// selection_rows: q [N,H,D], k [N,L,D], v [N,L,DV]; K and V shared by the H heads of a row.
// Block (row, split, head tile of 16): attends to `chunk` keys from split * chunk.

struct Row {
  int first, end;
  __device__ __forceinline__ int key(int row) const {
    return first + row < end ? first + row : -1;
  }
};

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    rows_cuda_kernel(const u16 *q, const char *k, const char *v, u16 *out, float *lse, float *part, float *plse,
         i64 q_sn, i64 q_sh, i64 k_sn, i64 k_sl, i64 v_sn, i64 v_sl, i64 H, i64 L, i64 chunk,
         double scale_log2) {
  start_next_launch();
  const i64 n = blockIdx.x;
  const int head = blockIdx.z * HEADS, count = min(static_cast<int>(H) - head, HEADS);
  const int lo = blockIdx.y * chunk, hi = min(lo + chunk, L);
  const KeysAndValues kv = {k + n * k_sn * 2, k_sl * 2, v + n * v_sn * 2, v_sl * 2};
  State state;
  attend(state, kv, q + n * q_sn + head * q_sh, q_sh, count, lo, hi,
         static_cast<float>(scale_log2), [&](int first) { return Row{first, hi}; });
  Target target = {out + (n * H + head) * DV, lse + n * H + head, nullptr, nullptr};
  if (gridDim.y > 1) {
    const i64 at = (n * gridDim.y + blockIdx.y) * H + head;
    target.part = part + at * DV;
    target.plse = plse + at;
  }
  store(state, target, count);
}
