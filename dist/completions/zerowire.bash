_zerowire() {
    local i cur prev opts cmd
    COMPREPLY=()
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        cur="$2"
    else
        cur="${COMP_WORDS[COMP_CWORD]}"
    fi
    prev="$3"
    cmd=""
    opts=""

    for i in "${COMP_WORDS[@]:0:COMP_CWORD}"
    do
        case "${cmd},${i}" in
            ",$1")
                cmd="zerowire"
                ;;
            zerowire,ctl)
                cmd="zerowire__subcmd__ctl"
                ;;
            zerowire,doctor)
                cmd="zerowire__subcmd__doctor"
                ;;
            zerowire,help)
                cmd="zerowire__subcmd__help"
                ;;
            zerowire,net)
                cmd="zerowire__subcmd__net"
                ;;
            zerowire,recv)
                cmd="zerowire__subcmd__recv"
                ;;
            zerowire,replay)
                cmd="zerowire__subcmd__replay"
                ;;
            zerowire,send)
                cmd="zerowire__subcmd__send"
                ;;
            zerowire,top)
                cmd="zerowire__subcmd__top"
                ;;
            zerowire,vsock)
                cmd="zerowire__subcmd__vsock"
                ;;
            zerowire__subcmd__ctl,add)
                cmd="zerowire__subcmd__ctl__subcmd__add"
                ;;
            zerowire__subcmd__ctl,capture)
                cmd="zerowire__subcmd__ctl__subcmd__capture"
                ;;
            zerowire__subcmd__ctl,change)
                cmd="zerowire__subcmd__ctl__subcmd__change"
                ;;
            zerowire__subcmd__ctl,drain)
                cmd="zerowire__subcmd__ctl__subcmd__drain"
                ;;
            zerowire__subcmd__ctl,help)
                cmd="zerowire__subcmd__ctl__subcmd__help"
                ;;
            zerowire__subcmd__ctl,list)
                cmd="zerowire__subcmd__ctl__subcmd__list"
                ;;
            zerowire__subcmd__ctl,metrics)
                cmd="zerowire__subcmd__ctl__subcmd__metrics"
                ;;
            zerowire__subcmd__ctl,remove)
                cmd="zerowire__subcmd__ctl__subcmd__remove"
                ;;
            zerowire__subcmd__ctl,show)
                cmd="zerowire__subcmd__ctl__subcmd__show"
                ;;
            zerowire__subcmd__ctl,stats)
                cmd="zerowire__subcmd__ctl__subcmd__stats"
                ;;
            zerowire__subcmd__ctl,version)
                cmd="zerowire__subcmd__ctl__subcmd__version"
                ;;
            zerowire__subcmd__ctl__subcmd__capture,help)
                cmd="zerowire__subcmd__ctl__subcmd__capture__subcmd__help"
                ;;
            zerowire__subcmd__ctl__subcmd__capture,show)
                cmd="zerowire__subcmd__ctl__subcmd__capture__subcmd__show"
                ;;
            zerowire__subcmd__ctl__subcmd__capture,start)
                cmd="zerowire__subcmd__ctl__subcmd__capture__subcmd__start"
                ;;
            zerowire__subcmd__ctl__subcmd__capture,stop)
                cmd="zerowire__subcmd__ctl__subcmd__capture__subcmd__stop"
                ;;
            zerowire__subcmd__ctl__subcmd__capture__subcmd__help,help)
                cmd="zerowire__subcmd__ctl__subcmd__capture__subcmd__help__subcmd__help"
                ;;
            zerowire__subcmd__ctl__subcmd__capture__subcmd__help,show)
                cmd="zerowire__subcmd__ctl__subcmd__capture__subcmd__help__subcmd__show"
                ;;
            zerowire__subcmd__ctl__subcmd__capture__subcmd__help,start)
                cmd="zerowire__subcmd__ctl__subcmd__capture__subcmd__help__subcmd__start"
                ;;
            zerowire__subcmd__ctl__subcmd__capture__subcmd__help,stop)
                cmd="zerowire__subcmd__ctl__subcmd__capture__subcmd__help__subcmd__stop"
                ;;
            zerowire__subcmd__ctl__subcmd__help,add)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__add"
                ;;
            zerowire__subcmd__ctl__subcmd__help,capture)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__capture"
                ;;
            zerowire__subcmd__ctl__subcmd__help,change)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__change"
                ;;
            zerowire__subcmd__ctl__subcmd__help,drain)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__drain"
                ;;
            zerowire__subcmd__ctl__subcmd__help,help)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__help"
                ;;
            zerowire__subcmd__ctl__subcmd__help,list)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__list"
                ;;
            zerowire__subcmd__ctl__subcmd__help,metrics)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__metrics"
                ;;
            zerowire__subcmd__ctl__subcmd__help,remove)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__remove"
                ;;
            zerowire__subcmd__ctl__subcmd__help,show)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__show"
                ;;
            zerowire__subcmd__ctl__subcmd__help,stats)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__stats"
                ;;
            zerowire__subcmd__ctl__subcmd__help,version)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__version"
                ;;
            zerowire__subcmd__ctl__subcmd__help__subcmd__capture,show)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__capture__subcmd__show"
                ;;
            zerowire__subcmd__ctl__subcmd__help__subcmd__capture,start)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__capture__subcmd__start"
                ;;
            zerowire__subcmd__ctl__subcmd__help__subcmd__capture,stop)
                cmd="zerowire__subcmd__ctl__subcmd__help__subcmd__capture__subcmd__stop"
                ;;
            zerowire__subcmd__help,ctl)
                cmd="zerowire__subcmd__help__subcmd__ctl"
                ;;
            zerowire__subcmd__help,doctor)
                cmd="zerowire__subcmd__help__subcmd__doctor"
                ;;
            zerowire__subcmd__help,help)
                cmd="zerowire__subcmd__help__subcmd__help"
                ;;
            zerowire__subcmd__help,net)
                cmd="zerowire__subcmd__help__subcmd__net"
                ;;
            zerowire__subcmd__help,recv)
                cmd="zerowire__subcmd__help__subcmd__recv"
                ;;
            zerowire__subcmd__help,replay)
                cmd="zerowire__subcmd__help__subcmd__replay"
                ;;
            zerowire__subcmd__help,send)
                cmd="zerowire__subcmd__help__subcmd__send"
                ;;
            zerowire__subcmd__help,top)
                cmd="zerowire__subcmd__help__subcmd__top"
                ;;
            zerowire__subcmd__help,vsock)
                cmd="zerowire__subcmd__help__subcmd__vsock"
                ;;
            zerowire__subcmd__help__subcmd__ctl,add)
                cmd="zerowire__subcmd__help__subcmd__ctl__subcmd__add"
                ;;
            zerowire__subcmd__help__subcmd__ctl,capture)
                cmd="zerowire__subcmd__help__subcmd__ctl__subcmd__capture"
                ;;
            zerowire__subcmd__help__subcmd__ctl,change)
                cmd="zerowire__subcmd__help__subcmd__ctl__subcmd__change"
                ;;
            zerowire__subcmd__help__subcmd__ctl,drain)
                cmd="zerowire__subcmd__help__subcmd__ctl__subcmd__drain"
                ;;
            zerowire__subcmd__help__subcmd__ctl,list)
                cmd="zerowire__subcmd__help__subcmd__ctl__subcmd__list"
                ;;
            zerowire__subcmd__help__subcmd__ctl,metrics)
                cmd="zerowire__subcmd__help__subcmd__ctl__subcmd__metrics"
                ;;
            zerowire__subcmd__help__subcmd__ctl,remove)
                cmd="zerowire__subcmd__help__subcmd__ctl__subcmd__remove"
                ;;
            zerowire__subcmd__help__subcmd__ctl,show)
                cmd="zerowire__subcmd__help__subcmd__ctl__subcmd__show"
                ;;
            zerowire__subcmd__help__subcmd__ctl,stats)
                cmd="zerowire__subcmd__help__subcmd__ctl__subcmd__stats"
                ;;
            zerowire__subcmd__help__subcmd__ctl,version)
                cmd="zerowire__subcmd__help__subcmd__ctl__subcmd__version"
                ;;
            zerowire__subcmd__help__subcmd__ctl__subcmd__capture,show)
                cmd="zerowire__subcmd__help__subcmd__ctl__subcmd__capture__subcmd__show"
                ;;
            zerowire__subcmd__help__subcmd__ctl__subcmd__capture,start)
                cmd="zerowire__subcmd__help__subcmd__ctl__subcmd__capture__subcmd__start"
                ;;
            zerowire__subcmd__help__subcmd__ctl__subcmd__capture,stop)
                cmd="zerowire__subcmd__help__subcmd__ctl__subcmd__capture__subcmd__stop"
                ;;
            *)
                ;;
        esac
    done

    case "${cmd}" in
        zerowire)
            opts="-h -V --log --log-format --help --version net vsock ctl top send recv doctor replay help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 1 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl)
            opts="-h --control --json --log --log-format --help version list show add change remove drain capture stats metrics help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__add)
            opts="-h --metadata --metadata-token --mac --guard --groups --uds-owner --uds-group --uds-mode --tx-limit --rx-limit --socket-owner --socket-group --socket-mode --socket --port --cid --uds --control --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --metadata)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --metadata-token)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mac)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --guard)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --groups)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --uds-owner)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --uds-group)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --uds-mode)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --tx-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --rx-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-owner)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-group)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-mode)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --port)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cid)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --uds)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__capture)
            opts="-h --control --json --log --log-format --help start show stop help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__capture__subcmd__help)
            opts="start show stop help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__capture__subcmd__help__subcmd__help)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 5 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__capture__subcmd__help__subcmd__show)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 5 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__capture__subcmd__help__subcmd__start)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 5 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__capture__subcmd__help__subcmd__stop)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 5 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__capture__subcmd__show)
            opts="-h --control --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__capture__subcmd__start)
            opts="-h --snaplen --rotate --vm --filter --control --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --snaplen)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --rotate)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --vm)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --filter)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__capture__subcmd__stop)
            opts="-h --control --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__change)
            opts="-h --socket --port --metadata --metadata-token --mac --guard --cid --uds --groups --uds-owner --uds-group --uds-mode --tx-limit --rx-limit --socket-owner --socket-group --socket-mode --reconnect --control --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --socket)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --port)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --metadata)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --metadata-token)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mac)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --guard)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cid)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --uds)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --groups)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --uds-owner)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --uds-group)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --uds-mode)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --tx-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --rx-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-owner)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-group)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-mode)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__drain)
            opts="-h --control --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help)
            opts="version list show add change remove drain capture stats metrics help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__add)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__capture)
            opts="start show stop"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__capture__subcmd__show)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 5 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__capture__subcmd__start)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 5 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__capture__subcmd__stop)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 5 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__change)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__drain)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__help)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__list)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__metrics)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__remove)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__show)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__stats)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__help__subcmd__version)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__list)
            opts="-h --control --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__metrics)
            opts="-h --control --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__remove)
            opts="-h --control --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__show)
            opts="-h --control --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__stats)
            opts="-h --follow --control --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__ctl__subcmd__version)
            opts="-h --control --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__doctor)
            opts="-i -q -h --path --interface --queue --configure --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --path)
                    COMPREPLY=($(compgen -W "net send recv vsock all" -- "${cur}"))
                    return 0
                    ;;
                --interface)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -i)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --queue)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -q)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help)
            opts="net vsock ctl top send recv doctor replay help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl)
            opts="version list show add change remove drain capture stats metrics"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl__subcmd__add)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl__subcmd__capture)
            opts="start show stop"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl__subcmd__capture__subcmd__show)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 5 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl__subcmd__capture__subcmd__start)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 5 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl__subcmd__capture__subcmd__stop)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 5 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl__subcmd__change)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl__subcmd__drain)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl__subcmd__list)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl__subcmd__metrics)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl__subcmd__remove)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl__subcmd__show)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl__subcmd__stats)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__ctl__subcmd__version)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 4 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__doctor)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__help)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__net)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__recv)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__replay)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__send)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__top)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__help__subcmd__vsock)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__net)
            opts="-h --socket-path --socket --fd --socket-owner --socket-group --socket-mode --port --name --vm --config --mac --guard --tx-limit --rx-limit --postcopy --metadata --metadata-token --memlock --path --gather-max --rx-copybreak --pcap --pcap-snaplen --pcap-rotate --pcap-vm --pcap-filter --control --control-owner --control-group --control-mode --metrics --pcap-dir --sandbox --user --json --print-capabilities --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --socket)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-path)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --fd)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-owner)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-group)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-mode)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --port)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --name)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --vm)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --config)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mac)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --guard)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --tx-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --rx-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --metadata)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --metadata-token)
                    COMPREPLY=($(compgen -W "required optional" -- "${cur}"))
                    return 0
                    ;;
                --memlock)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --path)
                    COMPREPLY=($(compgen -W "auto copy" -- "${cur}"))
                    return 0
                    ;;
                --gather-max)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --rx-copybreak)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pcap)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pcap-snaplen)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pcap-rotate)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pcap-vm)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pcap-filter)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --control-owner)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --control-group)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --control-mode)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --metrics)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pcap-dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --sandbox)
                    COMPREPLY=($(compgen -W "on off auto" -- "${cur}"))
                    return 0
                    ;;
                --user)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__recv)
            opts="-p -i -q -r -c -h --port --interface --queue --receive --connections --mode --bind --to --timeout --buffer --buffers --huge --rx-buf-len --configure --quiet --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --port)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --interface)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -i)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --queue)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -q)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --receive)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -r)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --connections)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -c)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mode)
                    COMPREPLY=($(compgen -W "auto plain multishot nodev queue" -- "${cur}"))
                    return 0
                    ;;
                --bind)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --to)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --timeout)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --buffer)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --buffers)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --rx-buf-len)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --json)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__replay)
            opts="-i -l -L -x -p -M -t -K -q -h --intf1 --interface --loop --limit --duration --multiplier --speed --pps --mbps --topspeed --port --queue --bypass-queue --oversized --mss --truncated --pad --short --backwards --max-gap --ignore-truncated --max-memory --preload-pcap --preload --quiet --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --interface)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --intf1)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -i)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --loop)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -l)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -L)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --duration)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --speed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --multiplier)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -x)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mbps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -M)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --port)
                    COMPREPLY=($(compgen -W "auto packet xdp send" -- "${cur}"))
                    return 0
                    ;;
                --queue)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --oversized)
                    COMPREPLY=($(compgen -W "fail skip gso gso-skip" -- "${cur}"))
                    return 0
                    ;;
                --mss)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --truncated)
                    COMPREPLY=($(compgen -W "fail skip send" -- "${cur}"))
                    return 0
                    ;;
                --short)
                    COMPREPLY=($(compgen -W "fail skip" -- "${cur}"))
                    return 0
                    ;;
                --backwards)
                    COMPREPLY=($(compgen -W "fail send" -- "${cur}"))
                    return 0
                    ;;
                --max-gap)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --max-memory)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --json)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__send)
            opts="-q -h --to --udp --mode --backend --chunk --datagram --timeout --quiet --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --to)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mode)
                    COMPREPLY=($(compgen -W "copy zerocopy auto" -- "${cur}"))
                    return 0
                    ;;
                --backend)
                    COMPREPLY=($(compgen -W "auto socket uring" -- "${cur}"))
                    return 0
                    ;;
                --chunk)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --datagram)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --timeout)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --json)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__top)
            opts="-h --control --interval --sort --once --json --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --interval)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --sort)
                    COMPREPLY=($(compgen -W "name transmit receive dropped zero-copied" -- "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        zerowire__subcmd__vsock)
            opts="-h --socket-path --socket --fd --socket-owner --socket-group --socket-mode --cid --uds-path --uds --uds-owner --uds-group --uds-mode --groups --name --vm --config --buffer --max-connections --peer-connections --sibling-connections --request-rate --tx-limit --rx-limit --map-allow --map-listen --map-max --map-connections --map-total --share-guest-memory --map-hold --pcap --pcap-snaplen --pcap-rotate --pcap-vm --pcap-filter --control --control-owner --control-group --control-mode --metrics --pcap-dir --sandbox --user --json --print-capabilities --log --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --socket)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-path)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --fd)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-owner)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-group)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket-mode)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cid)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --uds)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --uds-path)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --uds-owner)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --uds-group)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --uds-mode)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --groups)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --name)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --vm)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --config)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --buffer)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --max-connections)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --peer-connections)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --sibling-connections)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --request-rate)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --tx-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --rx-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --map-allow)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --map-listen)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --map-max)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --map-connections)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --map-total)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --map-hold)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pcap)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pcap-snaplen)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pcap-rotate)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pcap-vm)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pcap-filter)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --control)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --control-owner)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --control-group)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --control-mode)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --metrics)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pcap-dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --sandbox)
                    COMPREPLY=($(compgen -W "on off auto" -- "${cur}"))
                    return 0
                    ;;
                --user)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log)
                    COMPREPLY=($(compgen -W "error warn info debug trace" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json journal" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
    esac
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _zerowire -o nosort -o bashdefault -o default zerowire
else
    complete -F _zerowire -o bashdefault -o default zerowire
fi
