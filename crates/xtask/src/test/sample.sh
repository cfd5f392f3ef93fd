#!/bin/sh
# A test binary with one test, of which the first runs fail: as many as the file `failures` says.
echo run >> runs
outcome=ok
if [ "$(wc -l < runs)" -le "$(cat failures)" ]; then outcome=failed; fi
echo '{"type":"suite","event":"started","test_count":1}'
echo '{"type":"test","event":"timeout","name":"it_works"}'
echo "{\"type\":\"test\",\"event\":\"$outcome\",\"name\":\"it_works\",\"stdout\":\"why\"}"
echo '{"type":"suite","event":"ok"}'
