# The tests, one call each (see CMakeLists.txt beside this file). Keep them in the order of the rooms.

if(NOT KVT_SANITIZE)
    kvt_script(house_selftest SCRIPT check_house.py ARGS --self-test)
    kvt_script(trace_reuse SCRIPT count_reuse.py ARGS --self-test)
endif()

kvt_test(test_page SOURCES test_page.c LIBS kvt_kernels xxhash LABELS unit)
kvt_test(test_wire SOURCES test_wire.c LIBS kvt_wire kvt_kernels)
