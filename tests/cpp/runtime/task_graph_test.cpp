// Tasks that wait for one another: each runs once and after those before it, on several threads; the first error ends
// a run, and so does whoever asks for its end.
#include "runtime/parallel/task_graph.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "base/status.h"

namespace ortmodule {
namespace {

using Before = std::vector<std::vector<uint32_t>>;
using Clock = std::chrono::steady_clock;

TaskGraph graph_of(const Before& before, std::vector<char> light = {}) {
  light.resize(before.size(), 0);
  return {before, light};
}

// A root, `branches` chains of `length`, and a task that waits for their ends.
Before branches_of(uint32_t branches, uint32_t length) {
  Before before{{}};
  std::vector<uint32_t> ends;
  for (uint32_t b = 0; b < branches; ++b) {
    for (uint32_t i = 0; i < length; ++i) before.push_back({i == 0 ? 0 : static_cast<uint32_t>(before.size()) - 1});
    ends.push_back(static_cast<uint32_t>(before.size()) - 1);
  }
  before.push_back(ends);
  return before;
}

Before random_graph(uint32_t tasks, uint32_t seed) {
  std::mt19937 generator(seed);
  Before before(tasks);
  for (uint32_t i = 1; i < tasks; ++i) {
    std::set<uint32_t> earlier;
    for (uint32_t k = generator() % 4; k > 0; --k) earlier.insert(generator() % i);
    before[i].assign(earlier.begin(), earlier.end());
  }
  return before;
}

// Runs `before`; plain, unguarded writes show ThreadSanitizer whatever the scheduler does not order.
void run_checked(const Before& before, const TaskGraph& graph, InterOpPool& pool) {
  std::vector<int> done(before.size(), 0);
  std::atomic<int> early{0};
  run_tasks(graph, pool, nullptr, [&](TaskSource& source) {
    while (const auto task = source.next()) {
      for (uint32_t earlier : before[*task]) early += done[earlier] != 1;
      ++done[*task];
    }
  });
  EXPECT_EQ(early, 0);
  EXPECT_EQ(done, std::vector<int>(before.size(), 1));
}

TEST(TaskGraph, EachTaskRunsOnceAndAfterThoseBeforeIt) {
  InterOpPool pool(4, true), blocking(3, false), alone(1, true);
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const Before before = random_graph(200, seed);
    std::vector<char> light(before.size());
    for (size_t i = 0; i < light.size(); ++i) light[i] = (i * 7 + seed) % 3 == 0;
    for (InterOpPool* each : {&pool, &blocking, &alone}) run_checked(before, graph_of(before, light), *each);
  }
  run_checked({}, graph_of({}), pool);
  run_checked(Before(3000), graph_of(Before(3000)), pool);
}

TEST(TaskGraph, ManyCallersShareAPool) {
  InterOpPool pool(2, true);
  const Before before = branches_of(3, 20);
  const TaskGraph graph = graph_of(before);
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i)
    callers.emplace_back([&] {
      for (int run = 0; run < 100; ++run) run_checked(before, graph, pool);
    });
  for (std::thread& caller : callers) caller.join();
}

TEST(TaskGraph, BranchesRunSideBySide) {
  InterOpPool pool(2, true);
  const TaskGraph graph = graph_of(branches_of(2, 1));
  std::atomic<int> inside{0};
  run_tasks(graph, pool, nullptr, [&](TaskSource& source) {
    while (const auto task = source.next()) {
      if (*task != 1 && *task != 2) continue;
      ++inside;
      const auto limit = Clock::now() + std::chrono::seconds(10);
      while (inside < 2 && Clock::now() < limit) std::this_thread::yield();
    }
  });
  EXPECT_EQ(inside, 2);
}

TEST(TaskGraph, NoMoreThreadsWorkThanThePoolHas) {
  InterOpPool pool(2, true);
  const TaskGraph graph = graph_of(Before(40));
  std::atomic<int> at_work{0}, most{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      run_tasks(graph, pool, nullptr, [&](TaskSource& source) {
        while (source.next()) {
          const int now = ++at_work;
          for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) continue;
          std::this_thread::sleep_for(std::chrono::microseconds(100));
          --at_work;
        }
      });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(most, 2);
}

TEST(TaskGraph, ALightTaskWakesNobody) {
  InterOpPool pool(4, true);
  // Each task of a chain makes a light one ready as well.
  Before before{{}};
  std::vector<char> light{0};
  for (uint32_t i = 0; i < 200; i += 2) {
    before.push_back({i});
    light.push_back(1);
    before.push_back({i});
    light.push_back(0);
  }
  std::set<std::thread::id> threads;
  run_tasks(graph_of(before, light), pool, nullptr, [&](TaskSource& source) {
    while (source.next()) threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 1U);
}

TEST(TaskGraph, WidthCountsWhatMayRunAtOnce) {
  EXPECT_EQ(graph_of(branches_of(5, 3)).width(), 5U);
  EXPECT_EQ(graph_of(branches_of(1, 9)).width(), 1U);
  EXPECT_EQ(graph_of({{}, {0}, {0}, {1, 2}}, {0, 1, 0, 0}).width(), 1U);
  EXPECT_EQ(graph_of({{}, {}}, {1, 1}).width(), 0U);
}

TEST(TaskGraph, TheFirstErrorEndsTheRun) {
  InterOpPool pool(3, true);
  const Before before = branches_of(3, 50);
  const TaskGraph graph = graph_of(before);
  for (int run = 0; run < 200; ++run) {
    std::atomic<int> ran{0}, inside{0};
    try {
      run_tasks(graph, pool, nullptr, [&](TaskSource& source) {
        while (const auto task = source.next()) {
          ++inside;
          ++ran;
          const bool fails = *task == 10 || *task == 60 || *task == 110;
          --inside;
          if (fails) throw std::runtime_error("task " + std::to_string(*task));
        }
      });
      ADD_FAILURE() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("task "));
    }
    EXPECT_EQ(inside, 0);  // those that had begun have ended
    EXPECT_LT(ran, static_cast<int>(before.size()));
    run_checked(before, graph, pool);  // the pool goes on
  }
}

TEST(TaskGraph, ARunEndsSoonWhenItIsAskedTo) {
  InterOpPool pool(2, true);
  const Before before = branches_of(2, 100'000);
  const TaskGraph graph = graph_of(before);
  RunStop stop;
  std::atomic<bool> begun{false};
  Clock::time_point asked;
  std::thread asker([&] {
    while (!begun) std::this_thread::yield();
    asked = Clock::now();
    stop.ask();
  });
  try {
    run_tasks(graph, pool, &stop, [&](TaskSource& source) {
      while (source.next()) {
        begun = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    ADD_FAILURE() << "the run came to its end";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ErrorCode::kTerminated));
  }
  asker.join();
  EXPECT_LT(Clock::now() - asked, std::chrono::milliseconds(50));
  stop.take_back();
  run_checked(before, graph, pool);
}

TEST(TaskGraph, ARunThatWaitsForThreadsEndsAsWell) {
  InterOpPool pool(1, true);
  std::atomic<bool> let_go{false}, held{false};
  pool.schedule([&] {
    held = true;
    while (!let_go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  while (!held) std::this_thread::yield();
  RunStop stop;
  std::atomic<int> ran{0};
  Clock::time_point asked;
  std::thread asker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    asked = Clock::now();
    stop.ask();
  });
  {
    const TaskGraph graph = graph_of(Before(2));
    EXPECT_THROW(run_tasks(graph, pool, &stop,
                           [&](TaskSource& source) {
                             while (source.next()) ++ran;
                           }),
                 Error);
  }
  EXPECT_LT(Clock::now() - asked, std::chrono::milliseconds(50));
  asker.join();
  let_go = true;  // what was scheduled for the run finds that it is over
  run_checked({{}}, graph_of({{}}), pool);
  EXPECT_EQ(ran, 0);
}

TEST(TaskGraph, AThreadOfAPoolDoesNotWaitForOthers) {
  InterOpPool pool(1, true);
  std::atomic<int> refused{0};
  run_tasks(graph_of({{}}), pool, nullptr, [&](TaskSource& source) {
    while (source.next()) {
      try {
        run_tasks(graph_of({{}}), pool, nullptr, [](TaskSource&) {});
      } catch (const Error&) {
        ++refused;
      }
    }
  });
  EXPECT_EQ(refused, 1);
}

}  // namespace
}  // namespace ortmodule
