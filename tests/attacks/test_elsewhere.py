"""A few attacks run as a user; `just attacks-as-user` runs all of them."""

import os
import shutil

import pytest

from tests.attacks import elsewhere
from tests.worker.test_sandbox import needs_landlock


@needs_landlock
@pytest.mark.skipif(os.getuid() != 0, reason="without root, all attacks run as a user anyway")
@pytest.mark.skipif(
    not all(map(shutil.which, ("unshare", "setpriv"))), reason="needs util-linux: unshare, setpriv"
)
def test_a_few_gain_nothing_as_a_user(capfd):
    assert elsewhere.as_user(["tests/attacks/test_attacks.py", "-k", elsewhere.FEW]) == 0
    assert f"{len(elsewhere.FEW.split(' or '))} passed" in capfd.readouterr().out
