"""Settings for S3 from a profile in ``~/.aws``, which obstore does not read."""

from __future__ import annotations

import configparser
import os

_CREDENTIALS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_OTHER_WAYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def profile_settings() -> dict[str, str]:
    """Keys, region and endpoint of the profile ``AWS_PROFILE``, or ``default``, as obstore names them.

    Empty where the environment has credentials of another kind, or there is no such file. What the
    environment says of region and endpoint goes before the profile.

    Raises:
        ValueError: ``AWS_PROFILE`` names a profile that has no keys.

    Source:
        "Configuration and credential file settings" in the AWS CLI's user guide.
    """
    if any(map(os.environ.get, _OTHER_WAYS)):
        return {}
    asked_for = os.environ.get("AWS_PROFILE", "")
    name = asked_for or "default"
    secrets = _section("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name)
    general = _section("AWS_CONFIG_FILE", "~/.aws/config", name if name == "default" else f"profile {name}")
    found = {**general, **secrets}
    settings = {ours: found[theirs] for theirs, ours in _CREDENTIALS.items() if theirs in found}
    if "access_key_id" not in settings or "secret_access_key" not in settings:
        if asked_for:
            raise ValueError(
                f"AWS_PROFILE names the profile {asked_for!r}, which has no access key in ~/.aws; if it "
                "signs in by "
                f"other means, run: eval $(aws configure export-credentials --profile {asked_for} "
                "--format env)"
            )
        return {}
    if "region" in found and not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        settings["region"] = found["region"]
    endpoints = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    if "endpoint_url" in found and not any(map(os.environ.get, endpoints)):
        settings["endpoint"] = found["endpoint_url"]
    return settings


def _section(variable: str, default: str, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(os.path.expanduser(os.environ.get(variable) or default), encoding="utf-8")
    except configparser.Error as error:
        raise ValueError(f"{variable} or {default}: {error}") from None
    return dict(parser[name]) if parser.has_section(name) else {}
