"""What a policy server serves, by name and version."""

from __future__ import annotations

import threading

from podracer_core.errors import AlreadyExists, Exhausted, NotFound
from podracer_core.serving.policy import ServedPolicy

__all__ = ["MAX_NAMES", "VERSIONS_KEPT", "ServedPolicies"]

MAX_NAMES = 64
VERSIONS_KEPT = 2
"""Of each name: the present one, and the one before."""


class ServedPolicies:
    """Any thread may ask and change it. Who has found a policy keeps it: taking it out here ends nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[str, list[ServedPolicy]] = {}  # the present one first

    def put(self, policy: ServedPolicy) -> ServedPolicy:
        """Make it the present version of its name; returns the one that acts from now on.

        A version that is there with the same content stays and becomes the present one. Raises AlreadyExists where its
        content is another, Exhausted where there are too many names.
        """
        with self._lock:
            versions = self._versions.get(policy.name, [])
            if not versions and len(self._versions) >= MAX_NAMES:
                raise Exhausted(
                    f"{MAX_NAMES} policies are served already; take one out first", reason="TOO_MANY_POLICIES"
                )
            for there in versions:
                if there.version != policy.version:
                    continue
                if there.digest != policy.digest:
                    message = (
                        f"the policy {policy.name} has another version {policy.version} already; give it a new one"
                    )
                    raise AlreadyExists(message, reason="VERSION_TAKEN")
                policy = there
            others = [there for there in versions if there is not policy]
            self._versions[policy.name] = [policy, *others][:VERSIONS_KEPT]
            return policy

    def find(self, name: str = "", version: str = "") -> ServedPolicy:
        """The present version where none is given; the only policy where no name is. Raises NotFound."""
        with self._lock:
            if not name and len(self._versions) == 1:
                (name,) = self._versions
            versions = self._versions.get(name)
            if versions is None:
                names = ", ".join(sorted(self._versions)) or "none"
                problem = f"there is no policy {name[:100]!r}" if name else "the request names no policy"
                raise NotFound(f"{problem}; served here: {names}", reason="UNKNOWN_POLICY", policy=name[:100])
            for policy in versions:
                if not version or policy.version == version:
                    return policy
            known = ", ".join(policy.version for policy in versions)
            raise NotFound(
                f"the policy {name} has no version {version[:100]!r}; it has: {known}",
                reason="UNKNOWN_VERSION",
                policy=name,
            )

    def versions(self, name: str) -> list[str]:
        """Those that can be asked for, the present one first."""
        with self._lock:
            return [policy.version for policy in self._versions.get(name, ())]

    def present(self) -> list[ServedPolicy]:
        """The present version of each, by name."""
        with self._lock:
            return [self._versions[name][0] for name in sorted(self._versions)]

    def remove(self, name: str) -> None:
        """Take it out with all of its versions. Raises NotFound."""
        with self._lock:
            if self._versions.pop(name, None) is None:
                raise NotFound(f"there is no policy {name[:100]!r}", reason="UNKNOWN_POLICY", policy=name[:100])
