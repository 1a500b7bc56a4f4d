#!/bin/sh
# install.sh COMMAND:PACKAGE...: installs Debian packages whose command is not there, or says what to type. Never fails.
missing=""
for each in "$@"; do
  case "${each%%:*}" in
    /*) test -e "${each%%:*}" || missing="$missing ${each#*:}" ;;
    *) command -v "${each%%:*}" >/dev/null || missing="$missing ${each#*:}" ;;
  esac
done
test -n "$missing" || exit 0
if test "$(id -u)" = 0 && command -v apt-get >/dev/null; then
  echo "installing$missing"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null && exit 0
fi
echo "note: without$missing what needs it is left out" >&2
echo " hint: sudo apt-get install$missing" >&2
