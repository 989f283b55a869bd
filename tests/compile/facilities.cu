//@tune THREADS 128
//@launch facilities grid=16 block=THREADS smem=4096 cluster=2
#include "forge_target.h"
#include <mma.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_pipeline_primitives.h>
#include <cooperative_groups.h>
#include <cuda/barrier>

// every facility that the device sheet names, once
extern "C" __global__ void __launch_bounds__(THREADS) facilities(FORGE_PARAMS) {
    namespace cg = cooperative_groups;
    using namespace nvcuda;
    extern __shared__ __align__(128) unsigned char room[];
    float* stage = reinterpret_cast<float*>(room);
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    if (threadIdx.x == 0) init(&bar, THREADS);
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::device::memcpy_async_tx(stage, x, cuda::aligned_size_t<16>(256), bar);
        auto token = cuda::device::barrier_arrive_tx(bar, 1, 256);
        bar.wait(std::move(token));
    } else {
        bar.arrive_and_wait();
    }
    __pipeline_memcpy_async(stage + 64 + 4 * threadIdx.x % 64, x + 4 * threadIdx.x % 64, 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();
    const float* other = cluster.map_shared_rank(stage, cluster.block_rank() ^ 1);
    float value = other[threadIdx.x % 64] + __ldcs(x + threadIdx.x);
    cluster.sync();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::fill_fragment(a, __float2bfloat16(value));
    wmma::fill_fragment(b, __float2bfloat16(1.0f));
    wmma::fill_fragment(c, 0.0f);
    wmma::mma_sync(c, a, b, c);
    const __nv_bfloat162 pair = __hadd2(__float2bfloat162_rn(value), __float2bfloat162_rn(c.x[0]));
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    __stcs(out0 + blockIdx.x * THREADS + threadIdx.x, __low2float(pair));
}
