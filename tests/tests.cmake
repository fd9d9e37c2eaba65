# The tests, one call each (see CMakeLists.txt beside this file). Keep them in the order of the rooms.

if(NOT KVT_SANITIZE)
    kvt_script(house_selftest SCRIPT check_house.py ARGS --self-test)
    kvt_script(trace_reuse SCRIPT count_reuse.py ARGS --self-test)
    kvt_script(manuals SCRIPT manuals.py)
    kvt_script(gpu_run SCRIPT gpu/check.py)
endif()

kvt_test(test_where SOURCES test_where.c)
kvt_test(test_page SOURCES test_page.c LIBS kvt_kernels xxhash LABELS unit)
kvt_test(test_convert SOURCES test_convert.c LIBS kvt_kernels m LABELS unit)
kvt_test(test_convert_all TARGET test_convert ARGS long LABELS slow TIMEOUT 1800)
kvt_test(test_codec SOURCES test_codec.c LIBS kvt_kernels m LABELS unit)
kvt_test(test_sets SOURCES test_sets.c LIBS kvt_kernels xxhash LABELS unit)
kvt_test(test_golden SOURCES test_golden.c LIBS kvt_kernels ARGS ${CMAKE_CURRENT_SOURCE_DIR}/golden
         LABELS unit)
if(NOT KVT_SANITIZE)
    kvt_script(golden_made SCRIPT golden/make_golden.py
               ARGS --check ${CMAKE_CURRENT_SOURCE_DIR}/golden)
endif()
kvt_test(test_wire SOURCES test_wire.c LIBS kvt_wire kvt_kernels)
kvt_test(test_wire_keep SOURCES test_wire_keep.c LIBS kvt_wire kvt_kernels)
kvt_test(test_view_rows SOURCES test_view_rows.c LIBS kvt_core)


# Thousands of seeds where that takes seconds, hundreds where sanitizers slow it down.
if(KVT_SANITIZE)
    set(sim_seeds 200)
else()
    set(sim_seeds 1000)
endif()
kvt_test(sim SOURCES sim/main.c sim/clock.c sim/world.c sim/daemon.c sim/worker.c sim/keep.c
         sim/mirror.c sim/payload.c sim/ranks.c sim/disk.c sim/view.c sim/damage.c LIBS kvt_core kvt_device
         ARGS --count ${sim_seeds} TIMEOUT 900)
kvt_test(sim_deep TARGET sim ARGS --seed 1000 --count 10000 LABELS slow TIMEOUT 3600)
# The same with the arena on a GPU, which is a stand-in: cuda/README.md. Its kernels run thread by
# thread on the CPU: under sanitizers that takes too long for these.
set(gpu_slow async books drift flight layers room spill tiers watch)
# kvt_on_gpu(hybrid ARGS 3): the test e2e_hybrid_gpu, which is the program e2e_hybrid.
function(kvt_on_gpu name)
    set(labels e2e)
    if(KVT_SANITIZE AND name IN_LIST gpu_slow)
        list(APPEND labels slow)
    endif()
    kvt_test(e2e_${name}_gpu TARGET e2e_${name} ${ARGN} LABELS ${labels}
             NEEDS kvtrunkd kvtrunk_cuda_fake TIMEOUT 900)
    set_property(TEST e2e_${name}_gpu APPEND PROPERTY ENVIRONMENT KVT_TEST_DEVICE=cuda)
    cuda_emulated(e2e_${name}_gpu)
endfunction()
foreach(name kill cut death access flight share drift keep tiers lost damage spill source cool spans views realms room counts)
    kvt_test(e2e_${name} SOURCES e2e/${name}.c e2e/e2e.c LIBS kvtrunk_static kvt_oracle
             LABELS e2e NEEDS kvtrunkd TIMEOUT 900)
    kvt_on_gpu(${name})
endforeach()
foreach(name device tables gpus gpu_faults)
    kvt_test(e2e_${name} SOURCES e2e/${name}.c e2e/e2e.c LIBS kvtrunk_static kvt_oracle LABELS e2e
             NEEDS kvtrunkd kvtrunk_tool kvtrunk_cuda_fake TIMEOUT 300)
    set_property(TEST e2e_${name} APPEND PROPERTY ENVIRONMENT KVT_TEST_DEVICE=cuda)
    cuda_emulated(e2e_${name})
endforeach()
# Models of other shapes: layer groups with windows, ranks.
foreach(name hybrid ranks geometries layers)
    kvt_test(e2e_${name} SOURCES e2e/${name}.c e2e/model.c e2e/e2e.c
             LIBS kvtrunk_static kvt_oracle LABELS e2e NEEDS kvtrunkd TIMEOUT 300)
endforeach()
kvt_on_gpu(hybrid)
kvt_on_gpu(ranks)
kvt_on_gpu(geometries)
kvt_on_gpu(layers ARGS 1)
kvt_test(e2e_flight_long TARGET e2e_flight ARGS 200 4096 LABELS slow TIMEOUT 3600)
kvt_test(e2e_kill_long TARGET e2e_kill ARGS 1000 LABELS slow TIMEOUT 3600)
kvt_test(e2e_tiers_long TARGET e2e_tiers ARGS 100000 LABELS slow TIMEOUT 7200)
kvt_test(e2e_spill_long TARGET e2e_spill ARGS 200 LABELS slow TIMEOUT 3600)
kvt_test(e2e_layers_long TARGET e2e_layers ARGS 50 LABELS slow TIMEOUT 3600)
kvt_test(e2e_death_long TARGET e2e_death ARGS 500 LABELS slow TIMEOUT 3600)
if(NOT KVT_SANITIZE) # the counting in Python would be what takes the time
    kvt_script(replay SCRIPT replay.py LABELS e2e TIMEOUT 900)
    kvt_script(replay_long SCRIPT replay.py ARGS --long LABELS slow TIMEOUT 3600)
endif()
kvt_script(tool SCRIPT tool.py LABELS e2e TIMEOUT 600)
kvt_script(tool_sizes SCRIPT test_sizes.py)
kvt_test(test_sizes SOURCES test_sizes.c ${PROJECT_SOURCE_DIR}/client/tool_sizes_plan.c
         LIBS kvt_store)
if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/CMakeLists.txt)
    add_subdirectory(cuda)
endif()

kvt_test(test_trace SOURCES test_trace.c LIBS kvt_trace ZLIB::ZLIB)
kvt_test(test_oracle SOURCES test_oracle.c LIBS kvt_oracle)
kvt_test(test_cooled SOURCES test_cooled.c LIBS kvt_cooled)

kvt_test(test_json_scan SOURCES test_json_scan.c LIBS kvt_config)
kvt_test(test_config SOURCES test_config.c LIBS kvt_config)
kvt_test(test_trouble SOURCES test_trouble.c LIBS kvt_daemon)
kvt_test(test_health SOURCES test_health.c LIBS kvt_daemon)

add_library(kvt_core_rig STATIC core_rig.c)
target_link_libraries(kvt_core_rig PUBLIC kvt_core)
kvt_test(test_seal_room SOURCES test_seal_room.c LIBS kvt_core_rig)
kvt_test(test_suspect SOURCES test_suspect.c LIBS kvt_core_rig)
kvt_test(test_lift_short SOURCES test_lift_short.c LIBS kvt_core_rig)
kvt_test(test_silence SOURCES test_silence.c LIBS kvt_core_rig)
kvt_test(test_found SOURCES test_found.c LIBS kvt_core_rig)

kvt_test(test_inbox SOURCES test_inbox.c LIBS kvt_daemon LABELS threads)
kvt_test(test_jobs SOURCES test_jobs.c LIBS kvt_daemon LABELS threads)

kvt_fuzz(wire SOURCES fuzz_wire.c LIBS kvt_core_rig)
kvt_fuzz(config SOURCES fuzz_config.c LIBS kvt_config)
kvt_fuzz(trace SOURCES fuzz_trace.c LIBS kvt_trace)
kvt_fuzz(page SOURCES fuzz_page.c LIBS kvt_kernels xxhash)
kvt_fuzz(tier SOURCES fuzz_tier.c LIBS kvt_tier)

kvt_test(test_radix SOURCES test_radix.c LIBS kvt_radix)
kvt_test(test_radix_bounds SOURCES test_radix_bounds.c LIBS kvt_radix)
set(radix_operations 1000000)
if(KVT_SANITIZE)
    set(radix_operations 100000)
endif()
kvt_test(test_radix_model SOURCES test_radix_model.c LIBS kvt_radix ARGS 1 ${radix_operations})
kvt_test(test_radix_model_long TARGET test_radix_model ARGS 2 50000000 LABELS slow TIMEOUT 1200)

kvt_test(test_order SOURCES test_order.c LIBS kvt_store)
kvt_test(test_page_table SOURCES test_page_table.c LIBS kvt_store)
kvt_test(test_frames SOURCES test_frames.c LIBS kvt_store)
set(store_operations 1000000)
if(KVT_SANITIZE)
    set(store_operations 100000)
endif()
kvt_test(test_store_model SOURCES test_store_model.c LIBS kvt_store ARGS 1 ${store_operations})
kvt_test(test_store_model_long TARGET test_store_model ARGS 2 50000000 LABELS slow TIMEOUT 1200)
kvt_test(test_copy SOURCES test_copy.c LIBS kvt_kernels)
kvt_test(test_touch SOURCES test_touch.c LIBS kvt_device)
kvt_test(test_tier SOURCES test_tier.c LIBS kvt_tier kvt_wire)
kvt_test(test_tier_count SOURCES test_tier_count.c LIBS kvt_tier kvt_wire)
kvt_test(test_tier_files SOURCES test_tier_files.c LIBS kvt_tier kvt_wire)
kvt_test(test_tier_meta SOURCES test_tier_meta.c LIBS kvt_tier kvt_wire)
kvt_test(test_tier_readers SOURCES test_tier_readers.c LIBS kvt_tier kvt_wire)
kvt_test(test_disk SOURCES test_disk.c LIBS kvt_disk kvt_wire TIMEOUT 300)
kvt_test(test_disk_life SOURCES test_disk_life.c LIBS kvt_disk kvt_wire TIMEOUT 300)
kvt_test(test_tier_long TARGET test_tier ARGS 3 300000 LABELS slow TIMEOUT 1200)
kvt_test(test_disk_long TARGET test_disk ARGS 300 LABELS slow TIMEOUT 1800)

# ./run bench. Not a test: what it prints is a timing, and means something on an idle machine only.
file(GLOB bench_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/bench/*.c)
add_executable(bench EXCLUDE_FROM_ALL ${bench_sources} e2e/e2e.c)
target_link_libraries(bench PRIVATE kvt_core kvt_device kvt_disk kvtrunk_static kvt_oracle nng m
                      ${CMAKE_DL_LIBS})
add_dependencies(bench kvtrunkd)

kvt_script(e2e_daemon SCRIPT e2e_daemon.py LABELS e2e TIMEOUT 300)
kvt_script(e2e_disk SCRIPT e2e_disk.py LABELS e2e TIMEOUT 300)

kvt_test(test_device_host SOURCES test_device_host.c LIBS kvt_device)
foreach(call fstatvfs fchown fchmod posix_fallocate fstat mmap pread) # to make them fail
    target_link_options(test_device_host PRIVATE -Wl,--wrap=${call})
endforeach()

# Every vector path against the reference; pages and codec sets under each path that is forced. (One
# that the machine cannot run gives the portable path.)
kvt_test(test_cpu SOURCES test_cpu.c LIBS kvt_kernels)
kvt_test(test_cpu_long TARGET test_cpu ARGS 77 40000 LABELS slow TIMEOUT 1800)
if(NOT KVT_SANITIZE)
    kvt_register(test_cpu_cross COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/neon.sh ${PROJECT_SOURCE_DIR}
                 ${CMAKE_CURRENT_BINARY_DIR}/neon TIMEOUT 600)
    kvt_register(test_cpu_cross_long COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/neon.sh
                 ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/neon_long --all LABELS slow TIMEOUT 3600)
endif()
foreach(path portable avx2 avx512 neon)
    foreach(name test_page test_sets)
        kvt_test(${name}_${path} TARGET ${name})
        set_property(TEST ${name}_${path} APPEND PROPERTY ENVIRONMENT KVT_CPU=${path})
    endforeach()
endforeach()
kvt_test(test_server SOURCES test_server.c LIBS kvt_daemon LABELS threads)
kvt_test(test_report SOURCES test_report.c LIBS kvt_daemon)

# The worker library against a daemon of the tests' own, which loses, cuts, repeats and lies.
set(client_test LIBS kvtrunk_static kvt_store nng)
kvt_test(test_client SOURCES test_client.c fake_daemon.c ${client_test})
kvt_test(test_client_view SOURCES test_client_view.c fake_daemon.c ${client_test})
kvt_test(test_client_threads SOURCES test_client_threads.c fake_daemon.c ${client_test}
         LABELS threads)
kvt_test(test_client_async SOURCES test_client_async.c fake_daemon.c ${client_test}
         LABELS threads)
kvt_test(e2e_books SOURCES e2e/books.c e2e/e2e.c LIBS kvtrunk_static kvt_oracle Threads::Threads
         LABELS e2e NEEDS kvtrunkd TIMEOUT 300)
kvt_on_gpu(books ARGS 100)
kvt_test(e2e_books_long TARGET e2e_books ARGS 1 LABELS slow TIMEOUT 1800)
kvt_test(e2e_async SOURCES e2e/async.c e2e/e2e.c LIBS kvtrunk_static kvt_oracle
         LABELS e2e threads NEEDS kvtrunkd TIMEOUT 300)
if(KVT_SANITIZE) # a daemon that is slowed down tenfold, and checks itself all the time, needs a core
    set_property(TEST e2e_async PROPERTY RUN_SERIAL ON)
endif()
kvt_on_gpu(async ARGS 10)
# Every nth allocation and system call fails. Without sanitizers, whose own allocator must come first.
if(NOT KVT_SANITIZE)
    add_library(kvt_failing SHARED failing/shim.c)
    target_link_libraries(kvt_failing PRIVATE ${CMAKE_DL_LIBS})
    kvt_test(failing_client SOURCES failing/failing.c e2e/e2e.c LIBS kvtrunk_static kvt_oracle
             ARGS client LABELS e2e NEEDS kvtrunkd kvt_failing TIMEOUT 300)
    kvt_test(failing_daemon TARGET failing_client ARGS daemon LABELS e2e TIMEOUT 300)
    kvt_test(failing_disk TARGET failing_client ARGS daemon disk LABELS slow TIMEOUT 900)
    add_library(kvt_hang_close SHARED failing/hang_close.c) # for e2e_daemon.py
    add_library(kvt_read_eio SHARED failing/read_eio.c)     # the same
endif()
kvt_test(test_client_faults SOURCES test_client_faults.c fake_daemon.c ${client_test})

kvt_test(test_codec_calls SOURCES test_codec_calls.c LIBS kvtrunk_static)
kvt_test(test_layout SOURCES test_layout.c LIBS kvtrunk_static LABELS unit)

kvt_test(test_real_kv SOURCES test_real_kv.c LIBS kvt_kernels m)

# The llama.cpp adapter: what of it needs no llama.cpp, and the rest where libllama is given.
kvt_test(test_llama_state SOURCES test_llama_state.c
         ${PROJECT_SOURCE_DIR}/client/adapters/llama/state.c)
kvt_test(test_llama_parts SOURCES test_llama_parts.c
         ${PROJECT_SOURCE_DIR}/client/adapters/llama/json_text.c)
if(KVT_LLAMA_DIR)
    include(llama/llama.cmake)
endif()
kvt_test(e2e_watch SOURCES e2e/watch.c e2e/e2e.c LIBS kvtrunk_static kvt_oracle ARGS 2000
         LABELS e2e NEEDS kvtrunkd TIMEOUT 300)
kvt_on_gpu(watch ARGS 500)
kvt_test(e2e_watch_long TARGET e2e_watch ARGS 100000 LABELS slow TIMEOUT 3600)
# Users of its own: root alone can make them.
kvt_test(e2e_tenants SOURCES e2e/tenants.c e2e/e2e.c LIBS kvtrunk_static kvt_oracle LABELS e2e
         NEEDS kvtrunkd TIMEOUT 300)

# Who goes first: the policy with the tree, and `kvtrunk simulate` over the traces.
kvt_test(test_policy SOURCES test_policy.c LIBS kvt_policy)
kvt_test(test_policy_long TARGET test_policy ARGS 100 100000 LABELS slow TIMEOUT 1200)
# Faults planted in the core, each of which the simulator must find.
if(NOT KVT_SANITIZE)
    kvt_script(sim_mutants SCRIPT sim/mutants.py TIMEOUT 900 LABELS unit
               ARGS --root ${PROJECT_SOURCE_DIR} --build ${PROJECT_BINARY_DIR}
                    --cc ${CMAKE_C_COMPILER})
endif()
if(NOT KVT_SANITIZE) # the counting in Python would be what takes the time
    kvt_script(simulate SCRIPT simulate.py TIMEOUT 300)
    kvt_script(simulate_long SCRIPT simulate.py ARGS --long LABELS slow TIMEOUT 3600)
endif()
