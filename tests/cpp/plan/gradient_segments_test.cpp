// Which gradients are handed out together.
#include "plan/gradient_segments.h"

#include <gtest/gtest.h>

namespace ortmodule {
namespace {

using Segments = std::vector<size_t>;

TEST(GradientSegments, FollowTheOrderInWhichGradientsBecomeReady) {
  EXPECT_EQ(gradient_segments({9, 4, 1}, {10, 10, 10}, 10), (Segments{2, 1, 0}));
}

TEST(GradientSegments, CloseOnlyWhenTheyHoldEnough) {
  EXPECT_EQ(gradient_segments({1, 2, 3, 4, 5}, {4, 4, 4, 20, 1}, 10), (Segments{0, 0, 0, 1, 2}));
}

TEST(GradientSegments, KeepGradientsOfOneStepTogether) {
  EXPECT_EQ(gradient_segments({1, 1, 1, 2}, {10, 10, 10, 10}, 10), (Segments{0, 0, 0, 1}));
}

TEST(GradientSegments, SmallModelsHaveOne) {
  EXPECT_EQ(gradient_segments({1, 2, 3}, {4, 4, 4}), (Segments{0, 0, 0}));
  EXPECT_TRUE(gradient_segments({}, {}).empty());
}

}  // namespace
}  // namespace ortmodule
