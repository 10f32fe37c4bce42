// C = act(alpha op(A) op(B) + beta C + bias), one matrix of a batch for each workgroup in z.
// Tiles of 32 x 32, 16 steps of k at a time in workgroup memory; 64 invocations, each with 4 x 4 sums in registers.
#include "include/gemm_square.wgsl"

const TILE = 32u;
const THREADS = 64u;
