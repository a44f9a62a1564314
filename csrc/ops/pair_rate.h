// Whether it pays to multiply bfloat16 in pairs (AVX-512 BF16), as against widening it to floats.
//
// Zen 4 does twice as many pairs as floats in a cycle, Intel's processors since Sapphire Rapids less than half as many:
// they have AMX for it, which a virtual machine may hide.
#pragma once

namespace ortmodule {

// The instructions are there.
bool has_pairs();
// They are there, and faster than those of floats: measured once per process, some 0.1 ms. The rates differ by two or
// more either way on all processors known, so that the answer is the same every time.
bool pairs_pay();
// The processor has tiles for bfloat16 (AMX), which oneDNN uses and which nothing else comes near.
bool has_bfloat16_tiles();

}  // namespace ortmodule
