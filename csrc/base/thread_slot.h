// Variables of a thread that every small operator reads.
#pragma once

// For a word or two. In a shared library a mention of a thread's variable is a call; what lies in the block that each
// thread is given at its start is a load. That block has little room for libraries that are loaded later (glibc's
// rtld.optional_static_tls, 512 bytes by default), so that nothing larger may lie there.
#define ORTMODULE_THREAD_SLOT [[gnu::tls_model("initial-exec")]] constinit thread_local
