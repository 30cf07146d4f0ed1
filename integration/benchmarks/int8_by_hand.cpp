// A step of Adam with int8 slots, as one writes it by hand for processors with AVX2: a bound for
// compiled steps.
//
// The codes are those of keras_tfopt/engine/state/stored.py. Decoding takes the line of a decade from a
// table by one instruction, which compilers of tensors do not have. Encoding needs the least of
// seven lines. What is left out: NaN, infinity, and scales below the normal numbers.
//
// Compile with -O3 -mavx2 -mfma -fopenmp -shared -fPIC.

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace {

constexpr int BLOCK = 256;
constexpr int DECADES = 7;
constexpr float SIGNED_END = 0.99296875f;  // the magnitude of the least number in the signed table

struct Tables {
  float slope[DECADES], start[DECADES];          // lines from values to indices
  float slope_back[8] = {}, start_back[8] = {};  // lines from indices to values

  Tables() {
    for (int i = 0; i < DECADES; ++i) {
      slope[i] = static_cast<float>(std::pow(10.0, 6 - i) * std::pow(2.0, i) / 0.9);
      start[i] = static_cast<float>(std::pow(2.0, i) * (1 - 0.1 / 0.9));
      // An index of decade i has the exponent 127 + i. Permutations take the last three bits.
      slope_back[(127 + i) & 7] = 1 / slope[i];
      start_back[(127 + i) & 7] = -start[i] / slope[i];
    }
  }
};

const Tables tables;

__m256 number(float value) { return _mm256_set1_ps(value); }

__m256 magnitude(__m256 x) { return _mm256_andnot_ps(number(-0.0f), x); }

template <bool is_signed>
__m256 decoded(const uint8_t* codes, __m256 slopes, __m256 starts, __m256 scale) {
  __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  __m256 index, sign = number(0.0f);
  if (is_signed) {
    code = _mm256_sub_epi32(code, _mm256_set1_epi32(127));
    sign = _mm256_and_ps(_mm256_castsi256_ps(code), number(-0.0f));
    index = _mm256_add_ps(_mm256_cvtepi32_ps(_mm256_abs_epi32(code)), number(0.5f));
  } else {
    index = _mm256_fmadd_ps(_mm256_cvtepi32_ps(code), number(0.5f), number(0.75f));
  }
  index = _mm256_min_ps(index, number(127.99999f));  // the code of 1
  __m256i exponent = _mm256_srli_epi32(_mm256_castps_si256(index), 23);
  __m256 slope = _mm256_permutevar8x32_ps(slopes, exponent);
  __m256 value = _mm256_fmadd_ps(index, slope, _mm256_permutevar8x32_ps(starts, exponent));
  return _mm256_or_ps(_mm256_mul_ps(value, scale), sign);
}

template <bool is_signed>
__m256i encoded(__m256 x, __m256 inverse) {
  const float count = is_signed ? 1 : 2;
  __m256 part = _mm256_mul_ps(magnitude(x), inverse);
  __m256 index = number(INFINITY);
  for (int i = 0; i < DECADES; ++i) {
    __m256 line = _mm256_fmadd_ps(
        part, number(count * tables.slope[i]), number(count * tables.start[i]));
    index = _mm256_min_ps(index, line);
  }
  // Indices from a power of 2 to 0.2 beyond become less than that power.
  __m256 power = _mm256_and_ps(index, _mm256_castsi256_ps(_mm256_set1_epi32(0x7F800000)));
  __m256 lower = _mm256_fmadd_ps(number(-0.25f), power, number(-0.25f));
  index = _mm256_min_ps(index, _mm256_fmadd_ps(number(1.25f), index, lower));
  __m256 last = _mm256_fmadd_ps(number(2.0f), index, number(0.5f - 128 * count));
  __m256i code = _mm256_cvttps_epi32(_mm256_max_ps(index, last));
  if (is_signed) {
    __m256i sign = _mm256_srai_epi32(_mm256_castps_si256(x), 31);
    code = _mm256_sub_epi32(_mm256_xor_si256(code, sign), sign);
    code = _mm256_add_epi32(code, _mm256_set1_epi32(127));
    return _mm256_max_epi32(code, _mm256_setzero_si256());
  }
  code = _mm256_max_epi32(_mm256_sub_epi32(code, _mm256_set1_epi32(1)), _mm256_set1_epi32(1));
  __m256 is_positive = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ);
  return _mm256_and_si256(code, _mm256_castps_si256(is_positive));
}

template <bool is_signed>
void encode_block(const float* values, float largest, uint8_t* codes) {
  __m256 inverse = number(largest > 0 ? 1 / largest : 0);
  for (int j = 0; j < BLOCK; j += 32) {
    __m256i four[4];
    for (int k = 0; k < 4; ++k)
      four[k] = encoded<is_signed>(_mm256_loadu_ps(values + j + 8 * k), inverse);
    __m256i bytes = _mm256_packus_epi16(
        _mm256_packs_epi32(four[0], four[1]), _mm256_packs_epi32(four[2], four[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + j), bytes);
  }
}

float largest_of(__m256 values) {
  float each[8];
  _mm256_storeu_ps(each, values);
  return *std::max_element(each, each + 8);
}

}  // namespace

// Update `blocks` blocks of 256 numbers in place; `rate` is the learning rate of this step, with
// the correction of both moments.
extern "C" void adam_int8(float* x, const float* g, uint8_t* m, float* m_scales, uint8_t* v,
                          float* v_scales, int64_t blocks, float rate) {
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < blocks; ++block) {
    float new_m[BLOCK], new_v[BLOCK];
    __m256 slopes = _mm256_loadu_ps(tables.slope_back), starts = _mm256_loadu_ps(tables.start_back);
    // The exponent of an index below 1 is 126: it stands for 0, and no decade has this place.
    __m256 m_scale = number(m_scales[block]), v_scale = number(v_scales[block]);
    __m256 m_largest = _mm256_setzero_ps(), v_largest = _mm256_setzero_ps();
    for (int j = 0; j < BLOCK; j += 8) {
      const int64_t place = block * BLOCK + j;
      __m256 gradient = _mm256_loadu_ps(g + place);
      __m256 first = decoded<true>(m + place, slopes, starts, m_scale);
      __m256 second = decoded<false>(v + place, slopes, starts, v_scale);
      first = _mm256_fmadd_ps(_mm256_sub_ps(gradient, first), number(0.1f), first);
      __m256 square = _mm256_mul_ps(gradient, gradient);
      second = _mm256_fmadd_ps(_mm256_sub_ps(square, second), number(0.001f), second);
      __m256 reach = _mm256_max_ps(first, _mm256_mul_ps(first, number(-1 / SIGNED_END)));
      m_largest = _mm256_max_ps(m_largest, reach);
      v_largest = _mm256_max_ps(v_largest, second);
      __m256 root = _mm256_add_ps(_mm256_sqrt_ps(second), number(1e-7f));
      __m256 step = _mm256_div_ps(_mm256_mul_ps(number(rate), first), root);
      _mm256_storeu_ps(x + place, _mm256_sub_ps(_mm256_loadu_ps(x + place), step));
      _mm256_storeu_ps(new_m + j, first);
      _mm256_storeu_ps(new_v + j, second);
    }
    m_scales[block] = largest_of(m_largest);
    v_scales[block] = largest_of(v_largest);
    encode_block<true>(new_m, m_scales[block], m + block * BLOCK);
    encode_block<false>(new_v, v_scales[block], v + block * BLOCK);
  }
}
