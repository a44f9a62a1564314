// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), laid out for vector units.
//
// Elements come in blocks of 64: block b uses the 16 counters 16 b .. 16 b + 15 and word w of counter l decides
// element 64 b + 16 w + l. The mapping depends on the element's index alone, never on threads or vector width.
#pragma once

#include <cstdint>

#include "ops/cpu_simd.h"

namespace ortmodule {

constexpr int kPhiloxLanes = 16;
constexpr int kPhiloxBlock = 4 * kPhiloxLanes;

// Fills words[64] with the uniform 32-bit words of block `block`.
ORTMODULE_INLINE void philox_block(uint64_t seed, uint64_t offset, uint64_t block, uint32_t* words) {
  uint32_t c0[kPhiloxLanes], c1[kPhiloxLanes], c2[kPhiloxLanes], c3[kPhiloxLanes];
  const uint64_t first = block * kPhiloxLanes;  // a multiple of 16: the lanes never carry into the upper half
  for (int l = 0; l < kPhiloxLanes; ++l) {
    c0[l] = static_cast<uint32_t>(first) + static_cast<uint32_t>(l);
    c1[l] = static_cast<uint32_t>(first >> 32);
    c2[l] = static_cast<uint32_t>(offset);
    c3[l] = static_cast<uint32_t>(offset >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int l = 0; l < kPhiloxLanes; ++l) {
      const uint64_t p0 = static_cast<uint64_t>(c0[l]) * 0xD2511F53u;
      const uint64_t p1 = static_cast<uint64_t>(c2[l]) * 0xCD9E8D57u;
      c0[l] = static_cast<uint32_t>(p1 >> 32) ^ c1[l] ^ k0;
      c2[l] = static_cast<uint32_t>(p0 >> 32) ^ c3[l] ^ k1;
      c1[l] = static_cast<uint32_t>(p1);
      c3[l] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int l = 0; l < kPhiloxLanes; ++l) {
    words[l] = c0[l];
    words[kPhiloxLanes + l] = c1[l];
    words[2 * kPhiloxLanes + l] = c2[l];
    words[3 * kPhiloxLanes + l] = c3[l];
  }
}

}  // namespace ortmodule
