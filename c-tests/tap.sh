# shellcheck shell=sh
# TAP from a shell script, to be sourced:
#
#   check NAME COMMAND...        a point: COMMAND succeeds; what it prints shows if it does not
#   equal NAME GOT EXPECTED      a point: the two are the same, and not empty
#   done_testing                 the plan; ends the script, with 1 if a point failed

tests=0
failures=0

check() {
	tap_name=$1
	shift
	tests=$((tests + 1))
	if tap_said=$("$@" 2>&1); then
		echo "ok $tests - $tap_name"
	else
		failures=$((failures + 1))
		echo "not ok $tests - $tap_name"
		printf '%s\n' "\$ $*" "$tap_said" | sed 's/^/# /'
	fi
}

same() {
	[ -n "$1" ] && [ "$1" = "$2" ] && return 0
	printf '%s\n' "got:" "$1" "expected:" "$2"
	return 1
}

equal() {
	check "$1" same "$2" "$3"
}

done_testing() {
	echo "1..$tests"
	[ "$tests" -gt 0 ] && [ "$failures" -eq 0 ]
	exit
}
