# The tool, and what it and the tests know of traces and payloads.
add_library(kvt_trace STATIC trace.c trace_pct1.c trace_tokens.c)
target_include_directories(kvt_trace PUBLIC ${CMAKE_SOURCE_DIR})
target_link_libraries(kvt_trace PRIVATE ZLIB::ZLIB)

add_library(kvt_oracle STATIC oracle.c reuse.c)
target_include_directories(kvt_oracle PUBLIC ${CMAKE_SOURCE_DIR})
target_link_libraries(kvt_oracle PUBLIC m)

# What a replay's pages must hold when they have cooled.
add_library(kvt_cooled STATIC cooled.c)
target_link_libraries(kvt_cooled PUBLIC kvt_oracle kvt_kernels)

add_executable(kvtrunk_tool
    tool_daemon.c
    tool_keep.c
    tool_lists.c
    tool_main.c
    tool_options.c
    tool_replay.c
    tool_replay_crew.c
    tool_replay_report.c
    tool_simulate.c
    tool_simulate_opt.c
    tool_simulate_run.c
    tool_simulate_trace.c
    tool_sizes.c
    tool_sizes_model.c
    tool_sizes_plan.c
    tool_status.c
    tool_text.c
    tool_tiers.c
    tool_tree.c
    tool_watch.c
    tool_worker.c
)
set_target_properties(kvtrunk_tool PROPERTIES OUTPUT_NAME kvtrunk)
target_link_libraries(kvtrunk_tool PRIVATE kvtrunk_static kvt_kernels kvt_policy kvt_radix kvt_trace kvt_cooled
                      kvt_oracle cjson)
