// What of the processor decides which kernel multiplies. Pure facts: nothing here is measured while a program runs, so
// that two runs on one type of machine choose alike and give the same bits.
#pragma once

namespace ortmodule {

bool is_intel();
// Vectors of 512 bits, and whether they are split in two, as Zen 4 does: the one family 19h that has them.
bool has_avx512();
bool has_split_avx512();
inline bool has_full_avx512() { return has_avx512() && !has_split_avx512(); }
// The instructions for bfloat16 in pairs (AVX-512 BF16) are there.
bool has_pairs();
// They are there, and do more in a cycle than those of floats. Zen 4 and later do twice as many pairs as floats;
// Intel's processors since Sapphire Rapids less than half as many: they have AMX for it, which a virtual machine may
// hide.
bool pairs_pay();
// The processor has tiles for bfloat16 (AMX), which oneDNN uses and which nothing else comes near.
bool has_bfloat16_tiles();

}  // namespace ortmodule
