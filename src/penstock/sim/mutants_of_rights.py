"""Mutants of permissions and of imported offsets: some seeds have users, and some an import."""

from __future__ import annotations

from penstock.sim.planting import Mutant, Patch

_ACCESS = "penstock.node.security.access"
_APPENDING = "penstock.node.api.partition_append"
_STORING = "penstock.node.api.append_api"

MUTANTS_OF_RIGHTS = (
    Mutant(
        "a broker goes by the rules that it found first",
        _ACCESS,
        "        if judge is None or not judge.goes_by(own, of_all):",
        "        if judge is None:",
    ),
    Mutant(
        "a connection outlives the secret that it was made with",
        _ACCESS,
        "            if credential is None or credential.mark != who.mark:",
        "            if credential is None:",
    ),
    Mutant(
        "a broker that is cut off goes by what it knows",
        _ACCESS,
        "        if not (access.is_current or (self.is_admin",
        "        if not (True or (self.is_admin",
    ),
    Mutant(
        "who may append is looked at when it is appended",
        _ACCESS,
        "        AppendRequest: _appending,",
        "        AppendRequest: _allowing,",
        (
            Patch(
                "penstock.node.partition.log_queries",
                "        if self.rules.allowed is not None:",
                "        if self.rules.allowed:",
            ),
            Patch(
                _STORING,
                "            self.append_to(partition, caller, check.message, check.asked, check.producer)\n",
                "            is_late = check.rules.allowed == ()\n"
                "            heard = InternalCaller(lambda response: None) if is_late else caller\n"
                "            self.append_to(partition, heard, check.message, check.asked, check.producer)\n"
                "            if is_late:\n"
                "                self._outbox.reply(caller, RemoteError(ErrorCode.NOT_AUTHORIZED, 'too late'))\n",
            ),
        ),
    ),
    Mutant(
        "rows on subjects of which no rule speaks are appended",
        _STORING,
        "._replace(allowed=allowed)",
        "",
    ),
    Mutant(
        "a fetch that waits is not looked at again",
        "penstock.node.api.fetch_api",
        "            self._access.of(waiter.who).check(waiter.request)",
        "            assert waiter",
    ),
    Mutant(
        "a change of users is answered before all brokers go by it",
        "penstock.node.controller.user_admin",
        "                self._all.wait(\n                    index, deadline_us,",
        "                (lambda index, deadline_us, done: done(None))(\n                    index, deadline_us,",
    ),
    Mutant(
        "who leads the audit next tells again what was told",
        "penstock.node.controller.audit",
        "                self._written = reading.index",
        "                self._written = 0",
    ),
    Mutant(
        "who altered a stream is not told",
        _ACCESS,
        "        return msgspec.structs.replace(command, by=self.signature, at_us=self._context.now.wall_us)",
        "        return command",
    ),
    Mutant(
        "rows that are there are put again",
        _APPENDING,
        "    if header.base_offset != log.log_end:",
        "    if header.base_offset > log.log_end:",
    ),
    Mutant(
        "rows that are put get the time of now",
        _APPENDING,
        "    header = codec.restamped(check.message, leader_epoch=partition.leader_epoch, flags=asked_flags(asked))",
        "    header = codec.renumber(check.message, base_offset=partition.log.log_end, timestamp_us=now.wall_us,\n"
        "        leader_epoch=partition.leader_epoch, flags=asked_flags(asked))",
    ),
)
