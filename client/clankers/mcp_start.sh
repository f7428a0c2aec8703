#!/bin/sh
# mcp_start.sh SOCKET RELAY...
#
# Answers the handshake of an MCP client, and becomes the relay (clankers.mcp) with the first message that needs the
# daemon. Most sessions never call a tool; they keep a shell, which takes a tenth of the time and of the memory of an
# interpreter. It reads only messages that are written exactly as the SDKs write them. The relay gets all others, and if
# nobody listens on the socket, everything: it starts the daemon.

socket=$1
shift
[ -S "$socket" ] || exec "$@"
. "${0%/*}/mcp_offline.sh" # PROTOCOL_VERSIONS, CAPABILITIES, TOOLS

# Set `id` and `rest`, the members from the method on; leave `id` empty if the request is not one of ours.
parse() {
    id='' rest=''
    case $line in
    '{"jsonrpc":"2.0","id":'*'}')
        rest=${line#'{"jsonrpc":"2.0","id":'}
        id=${rest%%,*}
        rest=${rest#*,}
        ;;
    '{"method":"'*',"jsonrpc":"2.0","id":'*'}')
        rest=${line#?}
        id=${line##*',"jsonrpc":"2.0","id":'}
        id=${id%?}
        ;;
    esac
    case $id in
    '"'*[!a-zA-Z0-9_-]*'"' | '""') id='' ;;
    '"'*'"') ;;
    *[!0-9]* | 0?*) id='' ;;
    esac
}

reply() {
    printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"
}

# Answer a request; fail if the relay has to.
answer() {
    parse
    [ -n "$id" ] || return 1
    case $rest in
    '"method":"server/discover",'*)
        reply '"error":{"code":-32601,"message":"Method not found","data":"server/discover"}'
        ;;
    '"method":"initialize","params":{"protocolVersion":"'*)
        version=${rest#'"method":"initialize","params":{"protocolVersion":"'}
        version=${version%%'"'*}
        case " $PROTOCOL_VERSIONS " in
        *" $version "*) reply "\"result\":{\"protocolVersion\":\"$version\",$CAPABILITIES}" ;;
        *) return 1 ;;
        esac
        ;;
    '"method":"tools/list"'[,}]*)
        reply "\"result\":$TOOLS"
        ;;
    *)
        return 1
        ;;
    esac
}

while IFS= read -r line || [ -n "$line" ]; do
    case $line in
    '{"jsonrpc":"2.0","method":"notifications/initialized"}' | '{"method":"notifications/initialized","jsonrpc":"2.0"}')
        continue
        ;;
    esac
    answer && continue
    exec "$@" --first-message 3<<END
$line
END
done
