# What looks at the llama.cpp adapter: only where libllama is given. tests/llama/run.py runs it.
add_executable(probe llama/probe.c llama/probe_bits.c llama/probe_codecs.c llama/probe_first.c
               llama/probe_hold.c llama/probe_realm.c llama/scores.c)
set_source_files_properties(llama/scores.c PROPERTIES COMPILE_OPTIONS "-O3;-ffast-math;-march=native")
target_link_libraries(probe PRIVATE kvtrunk_llama kvt_kernels m)
