"""Rules for finding secrets in text: a table of facts, read by `redaction.py` and by the tests.

Three tables. TOKENS are recognised by their own form, wherever they stand. CONTEXTS are recognised by what stands around
them: a command line, a header, a file format. NAMES are words in the name of a value ("DB_PASSWORD = ...") that say that
the value is secret.

Prefixes, alphabets and lengths are facts published by the vendors or visible in the public rule sets of gitleaks and
detect-secrets; `source` says which. Patterns are our own. They run on bytes and never nest unbounded quantifiers: every
repetition is bounded, possessive, or delimited by a byte that it cannot match.

`examples` are templates from which the tests make random secrets: `{a36}` is 36 letters and digits. See `fill`.
"""

import random
import re
import string
from collections.abc import Iterable
from typing import NamedTuple

_ALPHABETS = {
    "a": string.ascii_letters + string.digits,
    "w": string.ascii_letters + string.digits + "_-",
    "b": string.ascii_letters + string.digits + "+/",
    "h": "0123456789abcdef",
    "H": "0123456789ABCDEF",
    "d": string.digits,
    "l": string.ascii_lowercase + string.digits,
    "u": string.ascii_uppercase + string.digits,
    "c": string.ascii_letters,
    "t": "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
    "s": "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
}
_TEMPLATE = re.compile(r"\{([awbhHdluctsp])(\d*)\}")
_UUID = "{h8}-{h4}-4{h3}-a{h3}-{h12}"


class Token(NamedTuple):
    """A secret with a form of its own. `anchor` is a literal part of it that is searched first."""

    name: str
    anchor: str
    after: str
    source: str
    examples: tuple[str, ...]
    before: str = ""
    kind: str = "api-key"


class Context(NamedTuple):
    """A secret recognised by its surroundings: group 1 of `pattern`, right after one of `anchors`, if it passes `check`.

    Anchors and pattern are matched on the text in lower case. Checks are functions of `redaction.py`: "any" takes
    everything but placeholders, "mixed" wants letters with digits or signs, "token" a run that no word looks like,
    "random" even more so; others look at what stands before.
    """

    name: str
    anchors: tuple[str, ...]
    pattern: str
    check: str
    source: str
    examples: tuple[tuple[str, str], ...]
    kind: str = "password"
    unless_after: str = ""
    """A class of characters that must not precede the anchor."""


def fill(template: str, dice: random.Random) -> str:
    """Replace each `{a36}` in a template by 36 random characters of that alphabet, and `{p}` by a password."""
    return _TEMPLATE.sub(lambda found: _random_part(found[1], found[2], dice), template)


def _random_part(alphabet: str, length: str, dice: random.Random) -> str:
    if alphabet == "p":
        word = dice.choice(["hunter", "Tr0ub4dor", "correct", "sommer", "qwertz", "dragon", "S3cret", "Welcome"])
        return f"{word}{dice.randint(10, 9999)}{dice.choice(['!', '', '_x', '~', 'Q'])}"
    return "".join(dice.choice(_ALPHABETS[alphabet]) for _ in range(int(length)))


_GITLEAKS = "gitleaks rule set"
_DETECT = "detect-secrets plugins"


def _tokens(source: str, rows: Iterable[tuple[str, str, str, str]]) -> tuple[Token, ...]:
    return tuple(Token(name, anchor, after, source, (example,)) for name, anchor, after, example in rows)


TOKENS: tuple[Token, ...] = (
    # -- models
    *_tokens(
        "vendor documentation of each API",
        [
            ("openai-or-alike", "sk-", r"[A-Za-z0-9_-]{20,}", "sk-proj-{a20}T3BlbkFJ{a20}"),
            ("anthropic", "sk-ant-", r"[A-Za-z0-9_-]{20,}", "sk-ant-api03-{w93}AA"),
            ("openrouter", "sk-or-v1-", r"[A-Za-z0-9_-]{20,}", "sk-or-v1-{h64}"),
            ("hugging-face", "hf_", r"[A-Za-z0-9]{30,}", "hf_{c34}"),
            ("hugging-face-organisation", "api_org_", r"[A-Za-z0-9]{30,}", "api_org_{c34}"),
            ("groq", "gsk_", r"[A-Za-z0-9]{30,}", "gsk_{a52}"),
            ("xai", "xai-", r"[A-Za-z0-9]{30,}", "xai-{a80}"),
            ("perplexity", "pplx-", r"[A-Za-z0-9]{30,}", "pplx-{a48}"),
            ("nvidia", "nvapi-", r"[A-Za-z0-9_-]{30,}", "nvapi-{w64}"),
            ("replicate", "r8_", r"[A-Za-z0-9]{30,}", "r8_{a37}"),
            ("fireworks", "fw_", r"[A-Za-z0-9]{20,}(?![A-Za-z0-9_])", "fw_{a24}"),
            ("cerebras", "csk-", r"[a-z0-9]{40,}", "csk-{l48}"),
            ("langsmith", "lsv2_", r"(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}", "lsv2_pt_{h32}_{h10}"),
            ("voyage", "pa-", r"[A-Za-z0-9_-]{40,}", "pa-{w43}"),
            ("tavily", "tvly-", r"[A-Za-z0-9-]{24,}", "tvly-{a32}"),
            ("pinecone", "pcsk_", r"[A-Za-z0-9_]{30,}", "pcsk_{a6}_{a63}"),
            ("langfuse", "sk-lf-", r"[a-f0-9-]{36}", f"sk-lf-{_UUID}"),
            ("elevenlabs", "sk_", r"[a-f0-9]{48}(?![A-Za-z0-9])", "sk_{h48}"),
            ("modal", "as-", r"[A-Za-z0-9]{22}(?![A-Za-z0-9_-])", "as-{a22}"),
            ("firecrawl", "fc-", r"[a-f0-9]{32}(?![A-Za-z0-9])", "fc-{h32}"),
        ],
    ),
    # -- code hosting and packages
    *_tokens(
        f"vendor documentation, {_GITLEAKS}",
        [
            ("github-classic", "ghp_", r"[A-Za-z0-9]{30,}", "ghp_{a36}"),
            ("github-oauth", "gho_", r"[A-Za-z0-9]{30,}", "gho_{a36}"),
            ("github-user", "ghu_", r"[A-Za-z0-9]{30,}", "ghu_{a36}"),
            ("github-server", "ghs_", r"[A-Za-z0-9]{30,}", "ghs_{a36}"),
            ("github-refresh", "ghr_", r"[A-Za-z0-9]{30,}", "ghr_{a36}"),
            ("github-fine-grained", "github_pat_", r"[A-Za-z0-9_]{22,}", "github_pat_{a22}_{a59}"),
            ("gitlab-personal", "glpat-", r"[A-Za-z0-9_-]{20,}(?:\.[a-z0-9.]{9,})?", "glpat-{w20}"),
            ("gitlab-runner", "glrt-", r"(?:t\d_)?[A-Za-z0-9_-]{20,}(?:\.[a-z0-9.]{9,})?", "glrt-{w20}"),
            ("gitlab-pipeline", "glptt-", r"[A-Za-z0-9_-]{20,}", "glptt-{h40}"),
            ("gitlab-deploy", "gldt-", r"[A-Za-z0-9_-]{20,}", "gldt-{w20}"),
            ("gitlab-job", "glcbt-", r"[A-Za-z0-9_-]{20,}", "glcbt-{a2}_{w20}"),
            ("gitlab-feed", "glft-", r"[A-Za-z0-9_-]{20,}", "glft-{w20}"),
            ("gitlab-mail", "glimt-", r"[A-Za-z0-9_-]{20,}", "glimt-{w25}"),
            ("gitlab-agent", "glagent-", r"[A-Za-z0-9_-]{40,}", "glagent-{w50}"),
            ("gitlab-scim", "glsoat-", r"[A-Za-z0-9_-]{20,}", "glsoat-{w20}"),
            ("gitlab-application", "gloas-", r"[A-Za-z0-9_-]{40,}", "gloas-{w64}"),
            ("gitlab-feature-flag", "glffct-", r"[A-Za-z0-9_-]{20,}", "glffct-{w20}"),
            ("gitlab-registration", "GR1348941", r"[A-Za-z0-9_-]{20,}", "GR1348941{w20}"),
            ("bitbucket-app", "ATBB", r"[A-Za-z0-9]{28,36}(?![A-Za-z0-9])", "ATBB{a32}"),
            ("atlassian-api", "ATATT3", r"[A-Za-z0-9_=-]{50,}", "ATATT3{w186}"),
            ("atlassian-connect", "ATCTT3", r"[A-Za-z0-9_=-]{50,}", "ATCTT3{w186}"),
            ("npm", "npm_", r"[A-Za-z0-9]{36}(?![A-Za-z0-9])", "npm_{a36}"),
            ("pypi", "pypi-", r"[A-Za-z0-9_-]{50,}", "pypi-AgEIcHlwaS5vcmc{w80}"),
            ("rubygems", "rubygems_", r"[a-f0-9]{40,}", "rubygems_{h48}"),
            ("clojars", "CLOJARS_", r"[A-Za-z0-9]{50,}", "CLOJARS_{l60}"),
            ("nuget", "oy2", r"[a-z0-9]{43}(?![A-Za-z0-9])", "oy2{l43}"),
            ("crates", "cio", r"[A-Za-z0-9]{32}(?![A-Za-z0-9])", "cio{a32}"),
            ("docker-personal", "dckr_pat_", r"[A-Za-z0-9_-]{20,}", "dckr_pat_{w27}"),
            ("docker-organisation", "dckr_oat_", r"[A-Za-z0-9_-]{20,}", "dckr_oat_{w32}"),
            ("jfrog-key", "AKCp", r"[A-Za-z0-9]{60,}", "AKCp{a69}"),
            ("jfrog-reference", "cmVmdGtuO", r"[A-Za-z0-9+/=]{40,}", "cmVmdGtuO{a55}"),
            ("sourcegraph", "sgp_", r"(?:[a-f0-9]{16}_|local_)?[a-f0-9]{40}", "sgp_{h16}_{h40}"),
            ("buildkite", "bkua_", r"[a-f0-9]{40}", "bkua_{h40}"),
            ("circleci", "CCIPAT_", r"[A-Za-z0-9_]{40,}", "CCIPAT_{a22}_{h40}"),
            ("codeclimate", "CODECLIMATE_", r"[a-f0-9]{40,}", "CODECLIMATE_{h64}"),
            ("octopus", "API-", r"[A-Z0-9]{25,32}(?![A-Za-z0-9-])", "API-{u26}"),
            ("harness", "pat.", r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}", "pat.{w22}.{a24}.{a20}"),
            ("prefect", "pnu_", r"[A-Za-z0-9]{36}", "pnu_{a36}"),
            ("expo", "expo_", r"[A-Za-z0-9_-]{32,}", "expo_{a40}"),
            ("jetbrains", "perm:", r"[A-Za-z0-9=.+/-]{40,}", "perm:{a12}.{a16}.{a32}"),
            ("sonar-user", "squ_", r"[a-f0-9]{40}", "squ_{h40}"),
            ("sonar-project", "sqp_", r"[a-f0-9]{40}", "sqp_{h40}"),
            ("sonar-global", "sqa_", r"[a-f0-9]{40}", "sqa_{h40}"),
            ("snyk", "snyk_", r"(?:uat|sat)\.[A-Za-z0-9._-]{20,}", "snyk_uat.{h8}.{w60}"),
        ],
    ),
    # -- clouds and hosting
    *_tokens(
        f"vendor documentation, {_GITLEAKS}, {_DETECT}",
        [
            ("aws-access-key", "AKIA", r"[A-Z0-9]{16}(?![A-Za-z0-9])", "AKIA{t16}"),
            ("aws-temporary-key", "ASIA", r"[A-Z0-9]{16}(?![A-Za-z0-9])", "ASIA{t16}"),
            ("aws-bearer", "ABIA", r"[A-Z0-9]{16}(?![A-Za-z0-9])", "ABIA{t16}"),
            ("aws-context", "ACCA", r"[A-Z0-9]{16}(?![A-Za-z0-9])", "ACCA{t16}"),
            ("aws-bedrock", "ABSK", r"[A-Za-z0-9+/=]{60,}", "ABSK{a110}="),
            ("google-api", "AIza", r"[A-Za-z0-9_-]{35}(?![A-Za-z0-9_])", "AIza{w34}x"),
            ("google-oauth", "ya29.", r"[A-Za-z0-9_-]{20,}", "ya29.{w80}"),
            ("google-client", "GOCSPX-", r"[A-Za-z0-9_-]{20,}", "GOCSPX-{w28}"),
            ("google-refresh", "1//0", r"[A-Za-z0-9_-]{40,}", "1//0{w60}"),
            ("google-hmac", "GOOG1E", r"[A-Z0-9]{40,}", "GOOG1E{u55}"),
            ("alibaba", "LTAI", r"[A-Za-z0-9]{12,22}(?![A-Za-z0-9])", "LTAI{a20}"),
            ("tencent", "AKID", r"[A-Za-z0-9]{32}(?![A-Za-z0-9])", "AKID{a32}"),
            ("digitalocean-personal", "dop_v1_", r"[a-f0-9]{32,}", "dop_v1_{h64}"),
            ("digitalocean-oauth", "doo_v1_", r"[a-f0-9]{32,}", "doo_v1_{h64}"),
            ("digitalocean-refresh", "dor_v1_", r"[a-f0-9]{32,}", "dor_v1_{h64}"),
            ("databricks", "dapi", r"[a-f0-9]{32}(?:-\d)?(?![A-Za-z0-9])", "dapi{h32}"),
            ("databricks-secret", "dose", r"[a-f0-9]{32}(?![A-Za-z0-9])", "dose{h32}"),
            ("supabase", "sbp_", r"(?:oauth_)?[a-f0-9]{40}", "sbp_{h40}"),
            ("supabase-secret", "sb_secret_", r"[A-Za-z0-9_-]{20,}", "sb_secret_{w31}"),
            ("neon", "napi_", r"[a-z0-9]{40,}", "napi_{l64}"),
            ("planetscale-token", "pscale_tkn_", r"[A-Za-z0-9_.=-]{30,}", "pscale_tkn_{w43}"),
            ("planetscale-oauth", "pscale_oauth_", r"[A-Za-z0-9_.=-]{30,}", "pscale_oauth_{w43}"),
            ("planetscale-password", "pscale_pw_", r"[A-Za-z0-9_.=-]{30,}", "pscale_pw_{w43}"),
            ("vault-service", "hvs.", r"[A-Za-z0-9_-]{20,}", "hvs.{w95}"),
            ("vault-batch", "hvb.", r"[A-Za-z0-9_-]{40,}", "hvb.{w140}"),
            ("vault-recovery", "hvr.", r"[A-Za-z0-9_-]{20,}", "hvr.{w24}"),
            ("doppler", "dp.", r"(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,44}", "dp.pt.{a43}"),
            ("infisical", "st.", r"[a-f0-9]{24}\.[a-f0-9]{32}\.[a-f0-9]{32}", "st.{h24}.{h32}.{h32}"),
            ("1password-service", "ops_", r"eyJ[A-Za-z0-9+/=_-]{100,}", "ops_eyJ{a260}"),
            ("pulumi", "pul-", r"[a-f0-9]{40}", "pul-{h40}"),
            ("scalingo", "tk-us-", r"[A-Za-z0-9_-]{40,}", "tk-us-{w48}"),
            ("heroku", "HRKU-", r"[A-Za-z0-9_-]{36,}", "HRKU-AA{w58}"),
            ("fly-1", "fo1_", r"[A-Za-z0-9_-]{40,}", "fo1_{w43}"),
            ("fly-2", "fm2_", r"[A-Za-z0-9+/=_-]{60,}", "fm2_{b120}"),
            ("fly-1r", "fm1r_", r"[A-Za-z0-9+/=_-]{60,}", "fm1r_{b120}"),
            ("vercel-blob", "vercel_blob_rw_", r"[A-Za-z0-9_]{30,}", "vercel_blob_rw_{a16}_{a30}"),
            ("vercel", "vcp_", r"[A-Za-z0-9]{40,}", "vcp_{a56}"),
            ("netlify", "nfp_", r"[A-Za-z0-9]{36,}", "nfp_{a36}"),
            ("render", "rnd_", r"[A-Za-z0-9]{28,}", "rnd_{a28}"),
            ("cloudflare-origin", "v1.0-", r"[a-f0-9]{24}-[a-f0-9]{100,}", "v1.0-{h24}-{h146}"),
            ("confluent", "cflt", r"[A-Za-z0-9+/]{58,62}", "cflt{b60}"),
            ("clickhouse", "4b1d", r"[A-Za-z0-9]{38}(?![A-Za-z0-9])", "4b1d{a38}"),
            ("airtable", "pat", r"[A-Za-z0-9]{14}\.[a-f0-9]{64}", "pat{a14}.{h64}"),
            ("tailscale", "tskey-", r"[A-Za-z0-9-]{20,}", "tskey-auth-{a12}CNTRL-{a32}"),
            ("cloudflared", "eyJhIjoi", r"[A-Za-z0-9+/=_-]{60,}", "eyJhIjoi{a150}"),
            ("defined-networking", "dnkey-", r"[a-z0-9=_-]{40,}", "dnkey-{l26}-{l52}"),
            ("openshift", "sha256~", r"[A-Za-z0-9_-]{43}", "sha256~{w43}"),
            ("settlemint", "sm_", r"(?:aat|pat|sat)_[A-Za-z0-9]{16,}", "sm_pat_{a16}"),
        ],
    ),
    # -- payment, mail, messages, monitoring
    *_tokens(
        f"vendor documentation, {_GITLEAKS}, {_DETECT}",
        [
            ("stripe-secret", "sk_live_", r"[A-Za-z0-9]{16,}", "sk_live_{a24}"),
            ("stripe-test", "sk_test_", r"[A-Za-z0-9]{16,}", "sk_test_{a24}"),
            ("stripe-restricted", "rk_live_", r"[A-Za-z0-9]{16,}", "rk_live_{a24}"),
            ("stripe-restricted-test", "rk_test_", r"[A-Za-z0-9]{16,}", "rk_test_{a24}"),
            ("stripe-webhook", "whsec_", r"[A-Za-z0-9+/=]{24,}", "whsec_{a32}"),
            ("square-personal", "sq0atp-", r"[A-Za-z0-9_-]{22,}", "sq0atp-{w22}"),
            ("square-secret", "sq0csp-", r"[A-Za-z0-9_-]{40,}", "sq0csp-{w43}"),
            ("square-access", "EAAA", r"[A-Za-z0-9_-]{56,60}(?![A-Za-z0-9_+/=-])", "EAAA{w60}"),
            ("facebook-access", "EAA", r"[A-Za-z0-9]{100,}(?![A-Za-z0-9+/=])", "EAAC{a120}"),
            (
                "paypal-braintree",
                "access_token$",
                r"(?:production|sandbox)\$[a-z0-9]{16}\$[a-f0-9]{32}",
                "access_token$production${l16}${h32}",
            ),
            ("shopify-access", "shpat_", r"[a-fA-F0-9]{32}", "shpat_{h32}"),
            ("shopify-custom", "shpca_", r"[a-fA-F0-9]{32}", "shpca_{h32}"),
            ("shopify-private", "shppa_", r"[a-fA-F0-9]{32}", "shppa_{h32}"),
            ("shopify-shared", "shpss_", r"[a-fA-F0-9]{32}", "shpss_{h32}"),
            ("flutterwave", "FLWSECK", r"(?:_TEST)?-[a-zA-Z0-9]{12,32}(?:-X)?", "FLWSECK_TEST-{h32}-X"),
            ("razorpay", "rzp_", r"(?:live|test)_[A-Za-z0-9]{14,}", "rzp_live_{a14}"),
            ("mollie", "live_", r"[A-Za-z0-9]{30,}(?![A-Za-z0-9_])", "live_{a30}"),
            ("easypost", "EZAK", r"[A-Za-z0-9]{54}(?![A-Za-z0-9])", "EZAK{a54}"),
            ("easypost-test", "EZTK", r"[A-Za-z0-9]{54}(?![A-Za-z0-9])", "EZTK{a54}"),
            ("shippo", "shippo_", r"(?:live|test)_[a-f0-9]{40}", "shippo_live_{h40}"),
            ("duffel", "duffel_", r"(?:live|test)_[A-Za-z0-9_=-]{40,}", "duffel_live_{w43}"),
            ("slack", "xox", r"[abceoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,}", "xoxb-{d12}-{d12}-{a24}"),
            ("slack-cookie", "xoxd-", r"[A-Za-z0-9%+/=_-]{20,}", "xoxd-{a60}"),
            ("slack-app", "xapp-", r"[A-Za-z0-9-]{20,}", "xapp-1-{u11}-{d13}-{h64}"),
            ("slack-workflow", "xwfp-", r"[A-Za-z0-9-]{20,}", "xwfp-{d12}-{a30}"),
            ("sendgrid", "SG.", r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}", "SG.{w22}.{w43}"),
            ("mailgun", "key-", r"[a-f0-9]{32}(?![A-Za-z0-9])", "key-{h32}"),
            ("brevo", "xkeysib-", r"[a-f0-9]{64}-[A-Za-z0-9]{16}", "xkeysib-{h64}-{a16}"),
            ("brevo-smtp", "xsmtpsib-", r"[a-f0-9]{64}-[A-Za-z0-9]{16}", "xsmtpsib-{h64}-{a16}"),
            ("resend", "re_", r"[A-Za-z0-9]{8}_[A-Za-z0-9]{24}(?![A-Za-z0-9_])", "re_{a8}_{a24}"),
            ("mailersend", "mlsn.", r"[a-f0-9]{60,}", "mlsn.{h64}"),
            ("twilio", "SK", r"[a-f0-9]{32}(?![A-Za-z0-9])", "SK{h32}"),
            ("grafana-cloud", "glc_", r"[A-Za-z0-9+/=]{32,}", "glc_{b60}"),
            ("grafana-service", "glsa_", r"[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}", "glsa_{a32}_{h8}"),
            ("grafana-key", "eyJrIjoi", r"[A-Za-z0-9+/=_-]{50,}", "eyJrIjoi{a90}"),
            ("newrelic-user", "NRAK-", r"[A-Za-z0-9]{27}", "NRAK-{u27}"),
            ("newrelic-insert", "NRII-", r"[A-Za-z0-9_-]{32}", "NRII-{w32}"),
            ("newrelic-browser", "NRJS-", r"[a-f0-9]{19}", "NRJS-{h19}"),
            ("sentry-user", "sntryu_", r"[a-f0-9]{64}", "sntryu_{h64}"),
            ("sentry-organisation", "sntrys_", r"[A-Za-z0-9+/=_-]{40,}", "sntrys_eyJ{a100}_{b43}"),
            ("dynatrace", "dt0", r"[a-z]\d\d\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{64}", "dt0c01.{u24}.{u64}"),
            ("honeycomb", "hc", r"[abcdefgx]{1}[il]k_[a-z0-9]{50,}", "hcaik_{l58}"),
            ("posthog", "phx_", r"[A-Za-z0-9]{40,}", "phx_{a43}"),
            (
                "launchdarkly-sdk",
                "sdk-",
                r"[a-f0-9]{8}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{12}",
                f"sdk-{_UUID}",
            ),
            (
                "launchdarkly-api",
                "api-",
                r"[a-f0-9]{8}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{12}(?![A-Za-z0-9-])",
                f"api-{_UUID}",
            ),
            ("postman", "PMAK-", r"[a-f0-9]{24}-[a-f0-9]{34}", "PMAK-{h24}-{h34}"),
            ("linear", "lin_api_", r"[A-Za-z0-9]{30,}", "lin_api_{a40}"),
            ("linear-oauth", "lin_oauth_", r"[A-Za-z0-9]{30,}", "lin_oauth_{h64}"),
            ("notion", "ntn_", r"[A-Za-z0-9]{40,}", "ntn_{d11}{a35}"),
            ("notion-old", "secret_", r"[A-Za-z0-9]{43}(?![A-Za-z0-9_])", "secret_{a43}"),
            ("figma", "figd_", r"[A-Za-z0-9_-]{30,}", "figd_{w40}"),
            ("asana", "1/", r"\d{13,19}:[a-f0-9]{32}", "1/{d16}:{h32}"),
            ("asana-2", "2/", r"\d{13,19}/\d{13,19}:[a-f0-9]{32}", "2/{d16}/{d16}:{h32}"),
            ("typeform", "tfp_", r"[A-Za-z0-9_.=-]{40,}", "tfp_{w59}"),
            ("hubspot", "pat-", r"(?:na|eu|ap)\d-[a-f0-9-]{36}", f"pat-na1-{_UUID}"),
            ("contentful", "CFPAT-", r"[A-Za-z0-9_-]{40,}", "CFPAT-{w43}"),
            ("readme", "rdme_", r"[a-z0-9]{60,}", "rdme_{l70}"),
            ("frame-io", "fio-u-", r"[A-Za-z0-9_=-]{60,}", "fio-u-{w64}"),
            ("intra42", "s-s4t2", r"(?:ud|af)-[a-f0-9]{64}", "s-s4t2ud-{h64}"),
            ("adobe", "p8e-", r"[A-Za-z0-9]{32}", "p8e-{l32}"),
            ("infracost", "ico-", r"[A-Za-z0-9]{32}", "ico-{a32}"),
            ("plaid", "access-", r"(?:sandbox|development|production)-[a-f0-9-]{36}", f"access-production-{_UUID}"),
            ("twitter-bearer", "AAAAAAAAAAAAAAAAAAAAA", r"[A-Za-z0-9%]{60,}", "AAAAAAAAAAAAAAAAAAAAAA{a22}%3D{a58}"),
            ("ubidots", "BBFF-", r"[A-Za-z0-9]{30}", "BBFF-{a30}"),
            ("yandex-key", "AQVN", r"[A-Za-z0-9_-]{35,38}(?![A-Za-z0-9_-])", "AQVN{w36}"),
            ("yandex-oauth", "y0_", r"[A-Za-z0-9_-]{50,}", "y0_{w56}"),
            ("yandex-iam", "t1.", r"[A-Za-z0-9_-]{10,}={0,2}\.[A-Za-z0-9_-]{80,}={0,2}", "t1.{a60}.{a86}"),
            ("dropbox-short", "sl.", r"[A-Za-z0-9_=-]{100,}", "sl.{w135}"),
        ],
    ),
    # -- keys of people and wallets
    Token("age", "AGE-SECRET-KEY-1", r"[A-Z0-9]{50,}", "age documentation", ("AGE-SECRET-KEY-1{u58}",)),
    Token(
        "bitcoin-wif",
        "",
        r"(?:5[1-9A-HJ-NP-Za-km-z]{50}|[KL][1-9A-HJ-NP-Za-km-z]{51})(?![A-Za-z0-9+/=_.-])",
        "Bitcoin wallet import format",
        ("5J{s49}", "L{s51}"),
    ),
    Token("extended-private-key", "prv", r"[1-9A-HJ-NP-Za-km-z]{100,}", "BIP 32", ("xprv{s107}",), "[xyzt]"),
    Token(
        "1password-secret-key",
        "A3-",
        r"[A-Z0-9]{6}-[A-Z0-9]{6}-?[A-Z0-9]{5}(?:-[A-Z0-9]{5}){3}",
        _GITLEAKS,
        ("A3-{u6}-{u6}-{u5}-{u5}-{u5}-{u5}",),
    ),
    # -- forms without a prefix
    Token(
        "jwt",
        "eyJ",
        r"[A-Za-z0-9_-]{6,}\.eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}",
        "RFC 7519",
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIi{w40}.{w43}",),
        kind="jwt",
    ),
    Token(
        "jwe",
        "eyJ",
        r"[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{0,512}\.[A-Za-z0-9_-]{10,32}\.[A-Za-z0-9_-]{10,}\."
        r"[A-Za-z0-9_-]{16,}",
        "RFC 7516",
        ("eyJhbGciOiJSU0EtT0FFUCJ9.{w100}.{w16}.{w80}.{w22}",),
        kind="jwt",
    ),
    Token("jwt-base64", "ZXlK", r"[A-Za-z0-9+/=_-]{60,}", _GITLEAKS, ("ZXlKaGJHY2lPaU{a80}",), kind="jwt"),
    Token(
        "telegram",
        ":AA",
        r"[A-Za-z0-9_-]{32,33}(?![A-Za-z0-9_-])",
        "Telegram Bot API",
        ("{d10}:AA{w32}x",),
        r"[0-9]{8,10}",
    ),
    Token(
        "discord",
        ".",
        r"[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,45}(?![A-Za-z0-9_.-])",
        "Discord documentation",
        ("MT{a22}.{w6}.{w38}", "N{a23}.{w6}.{w27}"),
        r"[MNO][A-Za-z0-9]{22,27}",
    ),
    Token(
        "terraform",
        ".atlasv1.",
        r"[A-Za-z0-9_=-]{60,}",
        "Terraform documentation",
        ("{a14}.atlasv1.{w67}",),
        r"[A-Za-z0-9]{14}",
    ),
    Token(
        "vault-legacy",
        "s.",
        r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{24}(?![A-Za-z0-9_./-])",
        "Vault documentation",
        ("s.{a12}7{a11}",),
    ),
    Token(
        "azure-client-secret",
        "Q~",
        r"[A-Za-z0-9_.~-]{31,34}(?![A-Za-z0-9_~-])",
        _GITLEAKS,
        ("{a3}8Q~{w34}",),
        r"[A-Za-z0-9_.~-]{3}\d",
    ),
    Token("mailchimp", "-us", r"\d{1,2}(?![A-Za-z0-9])", "Mailchimp documentation", ("{h32}-us12",), r"[a-f0-9]{32}"),
    Token(
        "maxmind",
        "_mmk",
        r"(?![A-Za-z0-9])",
        "MaxMind documentation",
        ("{a6}_{a29}_mmk",),
        r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}",
    ),
    Token(
        "azure-function",
        "AzF",
        r"u[A-Za-z0-9_-]{6}==(?![A-Za-z0-9])",
        "Azure key signatures",
        ("{a44}AzFu{a6}==",),
        r"[A-Za-z0-9_-]{40,48}",
    ),
    Token(
        "azure-storage-signature",
        "+ASt",
        r"[A-Za-z0-9+/]{6}==",
        "Azure key signatures",
        ("{a76}+ASt{a6}==",),
        r"[A-Za-z0-9+/]{76}",
    ),
    Token(
        "azure-devops",
        "AZDO",
        r"[A-Za-z0-9]{4}(?![A-Za-z0-9])",
        "Azure key signatures",
        ("{a76}AZDO{a4}",),
        r"[A-Za-z0-9]{76}",
    ),
    Token("newrelic-licence", "NRAL", r"(?![A-Za-z0-9])", "New Relic documentation", ("{h36}NRAL",), r"[a-f0-9]{36}"),
    Token(
        "base64-pem",
        "LS0tLS1CRUdJTi",
        r"(?!BDRVJU|BQVUJMSUMg|BUUlVTVEVEI)[A-Za-z0-9+/=]{40,}",
        "RFC 7468 in base64",
        ("LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQo{b600}",),
        kind="private-key",
    ),
    Token(
        "openssh-key-body",
        "b3BlbnNzaC1rZXktdjE",
        r"[A-Za-z0-9+/=]{40,}",
        "OpenSSH key format",
        ("b3BlbnNzaC1rZXktdjEAAAAABG5vbmU{b60}",),
        kind="private-key",
    ),
)
"""Secrets recognised by their own form."""

_ARGUMENT = r"\\?[\"']?([^\s\"'`|;&\\]{3,200})"
_SPACE = r"[ \t]{1,3}"
_UUID_PATTERN = r"[a-f0-9]{8}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{12}"
_SECRET_WORDS = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "api_key", "api-key", "privatekey",
    "private_key", "private-key", "accesskey", "access_key", "access-key", "secretkey", "secret_key", "credential",
)  # fmt: skip
_SESSION_COOKIES = (
    "phpsessid=", "jsessionid=", "asp.net_sessionid=", "sessionid=", "_session=", "connect.sid=", "csrftoken=",
    "session_token=", "session-token=",
)  # fmt: skip

CONTEXTS: tuple[Context, ...] = (
    # -- headers
    Context(
        "authorization-header",
        ("authorization",),
        r"\\?[\"']?\]?\s{0,3}[:=,]\s{0,3}\\?[\"'`]?f?\\?[\"']?(?:[a-z][a-z0-9-]{1,24}[ \t]{1,3})?([a-z0-9._~+/=:-]{8,4096})",
        "credential",
        "RFC 9110",
        (
            ("Authorization: Bearer {}", "{w40}"),
            ("Authorization: Token {}", "{h40}"),
            ('-H "Authorization: Basic {}"', "YWRtaW46{a16}"),
            ("Proxy-Authorization: SSWS {}", "00{w40}"),
        ),
        "bearer",
    ),
    Context(
        "bearer",
        ("bearer",),
        r"[ \t]{1,3}([a-z0-9._~+/=-]{12,4096})",
        "token",
        "RFC 6750",
        (("curl -H 'x: Bearer {}'", "{w30}7"),),
        "bearer",
        "[a-z]",
    ),
    Context(
        "cookie-header",
        ("cookie:", 'cookie":', "cookie':", 'cookie\\":'),
        r"[ \t]{0,3}\\?[\"'`]?([a-z0-9_.$-]{1,80}=[^\"'`\n\r\\]{1,4096})",
        "cookie",
        "RFC 6265",
        (
            ("Cookie: session={}", "{a32}"),
            ("Set-Cookie: sid={}; Path=/; HttpOnly", "{w40}7"),
            ("-H 'Cookie: theme=dark; auth={}'", "{h64}"),
        ),
        "cookie",
        "[a-z]",
    ),
    Context(
        "cookie-option",
        (" -b ", " --cookie ", " --cookie="),
        r"\\?[\"']?([a-z0-9_.-]{1,60}=[^\"'\n\s]{6,2048})",
        "cookie",
        "curl manual",
        (("curl -b 'sid={}' https://example.org", "{a24}1"),),
        "cookie",
    ),
    Context(
        "session-cookie",
        _SESSION_COOKIES,
        r"([a-z0-9%._~+/:|-]{16,1024})",
        "token",
        "defaults of web frameworks",
        (("PHPSESSID={}", "{l26}"), ("_gitlab_session={}", "{h32}"), ("JSESSIONID={}", "{H32}")),
        "cookie",
    ),
    # -- addresses
    Context(
        "url-password",
        ("://",),
        r"[^\s/:@\"'<>\\`]{0,200}:([^\s/@\"'<>\\`]{1,200})@[a-z0-9\[_$]",
        "any",
        "RFC 3986",
        (
            ("postgres://me:{}@db.local:5432/shop", "{a12}"),
            ("redis://:{}@cache:6379/0", "{a20}"),
            ("mongodb+srv://u:{}@c0.mongodb.net/x", "{a9}!"),
            ("https://x-access-token:{}@github.com/a/b", "{a30}"),
        ),
        "url-password",
    ),
    Context(
        "url-token",
        ("://",),
        r"([a-z0-9_-]{20,200})@[a-z0-9\[_]",
        "url-token",
        "RFC 3986",
        (("git clone https://{}@git.example.org/a.git", "{a40}"),),
        "url-password",
    ),
    Context(
        "signed-url",
        ("sig=", "signature=", "security-token="),
        r"([a-z0-9%+/=_~.-]{16,2048})",
        "signature",
        "Azure, AWS and Google documentation",
        (
            ("https://a.blob.core.windows.net/c?sv=2022-11-02&sp=r&sig={}", "{a43}%3D"),
            ("https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature={}", "{h64}"),
        ),
        "secret",
    ),
    Context(
        "query-key",
        ("key=", "token=", "auth=", "appid="),
        r"([a-z0-9%+/=_~.-]{16,2048})",
        "query",
        "common practice of web APIs",
        (("GET /v1/x?api_key={}&a=1", "{a32}"), ("https://api.example.org/v2?a=1&token={}", "{h40}")),
        "secret",
    ),
    Context(
        "discord-webhook",
        ("/api/webhooks/",),
        r"\d{15,20}/([a-z0-9_-]{40,100})",
        "any",
        "Discord documentation",
        (("https://discord.com/api/webhooks/123456789012345678/{}", "{w68}"),),
        "webhook",
    ),
    Context(
        "slack-webhook",
        ("hooks.slack.com/",),
        r"(?:services|workflows|triggers)/([a-z0-9/+]{20,200})",
        "any",
        "Slack documentation",
        (("https://hooks.slack.com/services/{}", "T{u8}/B{u8}/{a24}"),),
        "webhook",
    ),
    Context(
        "teams-webhook",
        ("/incomingwebhook/",),
        r"([a-f0-9]{32}/[a-f0-9-]{36})",
        "any",
        "Microsoft Teams documentation",
        ((f"https://x.webhook.office.com/webhookb2/{_UUID}@{_UUID}/IncomingWebhook/{{}}", f"{{h32}}/{_UUID}"),),
        "webhook",
    ),
    Context(
        "zapier-webhook",
        ("hooks.zapier.com/hooks/catch/",),
        r"(\d{3,12}/[a-z0-9]{5,20})",
        "any",
        "Zapier documentation",
        (("https://hooks.zapier.com/hooks/catch/{}/", "{d7}/{l7}"),),
        "webhook",
    ),
    Context(
        "ifttt-webhook",
        ("/with/key/",),
        r"([a-z0-9_-]{20,60})",
        "any",
        "IFTTT documentation",
        (("https://maker.ifttt.com/trigger/go/with/key/{}", "{w43}"),),
        "webhook",
    ),
    Context(
        "mattermost-webhook",
        ("/hooks/",),
        r"([a-z0-9]{26})(?![a-z0-9])",
        "token",
        "Mattermost documentation",
        (("https://chat.example.org/hooks/{}", "{l25}7"),),
        "webhook",
    ),
    # -- command lines
    Context(
        "password-option",
        (" -p",),
        rf"w?[ =]?{_ARGUMENT}",
        "command",
        "manuals of the programs listed in redaction.py",
        (
            ("sshpass -p {} ssh me@host", "{p}"),
            ("sshpass -p'{}' scp a b:", "{p}"),
            ("mongosh -u me -p {} --host db", "{p}"),
            ("sqlcmd -S db -U sa -P {} -Q 'select 1'", "{p}"),
            ("7z x -p{} a.7z", "{p}"),
            ("zip -r -P {} a.zip dir", "{p}"),
            ("docker login -u me -p {} registry.example.org", "{p}"),
            ("az login -u me@x.org -p {}", "{p}"),
            ("oc login -u dev -p {}", "{p}"),
            ("mysql -u root -p{} shop", "{p}"),
            ("mysqldump -h db -uroot -p'{}' shop", "{p}"),
            ("tool -u admin -p {} run", "{p}"),
            ("mysql -u root -p {}", "{p}"),
        ),
    ),
    Context(
        "user-colon-password",
        (" -u", " --user", " --proxy-user", " --auth", "creds", " -a ", " --basic-auth"),
        r"[ =]{0,2}\\?[\"']?[a-z0-9_.@%+\\-]{1,100}:([^\s\"'`\\|;&]{2,200})",
        "user",
        "curl, HTTPie and skopeo manuals",
        (
            ("curl -u admin:{} https://example.org", "{p}"),
            ("curl --user 'me:{}' localhost", "{p}"),
            ("http -a me:{} :8000/x", "{p}"),
            ("skopeo copy --src-creds u:{} a b", "{p}"),
        ),
    ),
    Context(
        "redis-option",
        ("redis-cli ", "valkey-cli "),
        rf"(?:[^\n|;&]{{0,200}}? )?(?:-a|--pass)[ =]{_ARGUMENT}",
        "option",
        "Redis manual",
        (("redis-cli -h cache -a {} ping", "{p}"),),
    ),
    Context(
        "kubectl-literal",
        ("--from-literal=", "--from-literal "),
        r"\\?[\"']?[a-z0-9_.-]{1,100}=\\?[\"']?([^\s\"'\\]{4,500})",
        "any",
        "Kubernetes manual",
        (("kubectl create secret generic s --from-literal=api={}", "{p}"),),
        "secret",
    ),
    Context(
        "ssh-keygen-option",
        ("ssh-keygen ",),
        rf"(?:[^\n|;&]{{0,200}}? )?-n[ ]?{_ARGUMENT}",
        "option",
        "OpenSSH manual",
        (("ssh-keygen -t ed25519 -N {} -f k", "{p}"),),
    ),
    Context(
        "redis-config",
        ("requirepass", "masterauth"),
        r"[ \t]{1,3}\\?[\"']?([^\s\"'\\]{4,200})",
        "option",
        "Redis manual",
        (("requirepass {}", "{p}"),),
    ),
    Context(
        "samba-user",
        (" -u", " --user"),
        r"[ =]{0,2}\\?[\"']?[a-z0-9_.\\-]{1,60}%([^\s\"'`|;&]{4,100})",
        "mixed",
        "Samba manual",
        (("smbclient //host/share -U me%{}", "{p}"),),
    ),
    Context(
        "ldap-option",
        ("ldapsearch ", "ldapadd ", "ldapmodify ", "ldapdelete ", "ldapwhoami ", "ldappasswd "),
        rf"(?:[^\n|;&]{{0,200}}? )?-w[ ]?{_ARGUMENT}",
        "option",
        "OpenLDAP manual",
        (("ldapsearch -x -D cn=admin -w {} -b dc=x", "{p}"),),
    ),
    Context(
        "openssl-pass",
        ("pass:",),
        r"([^\s\"'\\]{3,200})",
        "openssl",
        "OpenSSL manual",
        (("openssl rsa -in k.pem -passin pass:{} -out o.pem", "{p}"),),
    ),
    Context(
        "keytool-pass",
        ("storepass ", "keypass "),
        r"[ \t]{0,2}\\?[\"']?([^\s\"'\\]{4,200})",
        "option",
        "keytool manual",
        (("keytool -genkey -storepass {} -keypass x", "{p}"),),
    ),
    Context(
        "piped-password",
        ("echo ", "printf "),
        r"(?:-n[ \t]{1,3})?(?:[\"']%s(?:\\n)?[\"'][ \t]{1,3})?\\?[\"']?(?:[a-z0-9_.-]{1,40}:)?([^\s\"'`|\\]{3,300})\\?[\"']?[ \t]{0,3}\|[ \t]{0,3}"
        r"(?:sudo[ \t]{1,3}(?:-[a-z]{1,3}[ \t]{1,3}){0,3}-[a-z]{0,3}s|(?:sudo[ \t])?chpasswd|(?:sudo[ \t])?passwd|"
        r"[a-z]{2,12}[ \t][^\n|;&]{0,200}?--(?:password-stdin|with-token|passphrase-fd|token-stdin))",
        "option",
        "manuals of these programs",
        (
            ("echo {} | sudo -S apt update", "{p}"),
            ("echo '{}' | docker login -u me --password-stdin", "{p}"),
            ("echo root:{} | chpasswd", "{p}"),
        ),
    ),
    Context(
        "htpasswd-option",
        ("htpasswd ",),
        r"-[a-z]{0,5}b[a-z]{0,5}[ \t]{1,3}\S{1,200}[ \t]{1,3}\S{1,100}[ \t]{1,3}\\?[\"']?([^\s\"'\\]{3,100})",
        "option",
        "Apache manual",
        (("htpasswd -bc .htpasswd me {}", "{p}"),),
    ),
    Context(
        "rabbitmq-user",
        ("rabbitmqctl ",),
        r"(?:add_user|change_password)[ \t]{1,3}\S{1,100}[ \t]{1,3}\\?[\"']?([^\s\"'\\]{3,100})",
        "option",
        "RabbitMQ manual",
        (("rabbitmqctl add_user me {}", "{p}"),),
    ),
    Context(
        "minio-alias",
        ("mc alias set ", "mc config host add "),
        r"\S{1,100}[ \t]{1,3}\S{1,200}[ \t]{1,3}\S{1,100}[ \t]{1,3}\\?[\"']?([^\s\"'\\]{6,100})",
        "option",
        "MinIO manual",
        (("mc alias set local http://127.0.0.1:9000 admin {}", "{a32}"),),
        "secret",
    ),
    Context(
        "windows-net-user",
        ("net user ", "net use "),
        r"\S{1,100}[ \t]{1,3}\\?[\"']?([^\s\"'/\\][^\s\"'\\]{3,100})\\?[\"']?[ \t]{1,3}/(?:add|user)",
        "option",
        "Windows manual",
        (("net user bob {} /add", "{p}"),),
    ),
    Context(
        "remote-desktop-password",
        ("freerdp ",),
        r"[^\n|;&]{0,200}?/p:\\?[\"']?([^\s\"'\\]{3,100})",
        "option",
        "FreeRDP manual",
        (("xfreerdp /u:me /p:{} /v:host", "{p}"),),
    ),
    Context(
        "secure-string",
        ("convertto-securestring ",),
        r"(?:-string[ \t]{1,3})?\\?[\"']([^\"'\n\\$]{4,200})\\?[\"']",
        "any",
        "PowerShell manual",
        (("$p = ConvertTo-SecureString '{}' -AsPlainText -Force", "{p}"),),
    ),
    Context(
        "set-command",
        ("setenv ", "setx ", "set ", "env ", "arg ", "config:set ", "set -x ", "set -gx ", "set -ux "),
        r"[ \t]{0,2}[a-z0-9_./:-]{0,60}(?:password|passwd|secret|token|_key|-key|apikey|passphrase)[ \t]{1,3}\\?[\"']?([^\s\"'=\\]{6,500})",
        "mixed",
        "csh, fish, Docker, AWS and Heroku manuals",
        (
            ("setenv DB_PASSWORD {}", "{p}"),
            ("set -gx API_TOKEN {}", "{a24}1"),
            ("ENV DB_PASSWORD {}", "{p}"),
            ("aws configure set aws_secret_access_key {}", "{a38}1a"),
            ("npm config set //r.example.org/:_password {}", "{a24}1"),
        ),
        unless_after="[a-z0-9_]",
    ),
    # -- files
    Context(
        "netrc",
        ("machine ", "default login "),
        r"(?:\S{1,200}\s{1,8}login\s{1,4})?\S{1,200}\s{1,8}(?:account\s{1,4}\S{1,200}\s{1,8})?password\s{1,4}(\S{1,300})",
        "any",
        "netrc manual",
        (
            ("machine example.org login me password {}", "{p}"),
            ("machine a.b\n  login me\n  password {}\n", "{p}"),
            ("default login me password {}", "{p}"),
        ),
    ),
    Context(
        "netrc-line",
        ("login ",),
        r"\S{1,100}[ \t]{1,3}password[ \t]{1,3}(\S{4,300})",
        "mixed",
        "netrc manual",
        (("login me password {}", "{p}"),),
        unless_after="[a-z]",
    ),
    Context(
        "pgpass",
        (":5432:", ":*:"),
        r"[a-z0-9*_.-]{1,60}:[a-z0-9*_.@-]{1,60}:([^\s:\\\"']{3,200})",
        "any",
        "PostgreSQL manual",
        (("db.example.org:5432:shop:me:{}", "{p}"), ("localhost:*:shop:me:{}", "{p}")),
    ),
    Context(
        "xml-element",
        _SECRET_WORDS,
        r"(?:[ \t][^<>\n]{0,120})?>([^<>\n]{3,500})</",
        "element",
        "Maven settings and similar files",
        (
            ("<password>{}</password>", "{p}"),
            ("<server><username>u</username><password>{}</password></server>", "{p}"),
            ("<apiKey>{}</apiKey>", "{a32}"),
        ),
    ),
    Context(
        "name-and-value",
        (*_SECRET_WORDS, "_key"),
        r"\\?[\"']?[ \t]{0,2},?\s{0,40}\\?[\"']?value\\?[\"']?[ \t]{0,2}[:=][ \t]{0,2}\\?[\"']?([^\s\"'<>,{}$\\]{4,500})",
        "mixed",
        "Kubernetes env, NuGet configuration, HTML forms",
        (
            ("- name: DB_PASSWORD\n  value: {}\n", "{p}"),
            ('{"name": "API_TOKEN", "value": "{}"}', "{a30}1"),
            ('<add key="ClearTextPassword" value="{}" />', "{p}"),
            ('<input type="password" name="password" value="{}">', "{p}"),
        ),
    ),
    Context(
        "terraform-default",
        ('variable "', 'variable \\"'),
        r"[a-z0-9_-]{0,60}(?:password|secret|token|_key)\\?\"[ \t]{0,3}\{[^{}]{0,400}?default[ \t]{0,10}=[ \t]{0,3}\\?\"([^\"\n\\$]{4,300})",
        "mixed",
        "Terraform documentation",
        (('variable "db_password" {\n  type    = string\n  default = "{}"\n}', "{p}"),),
    ),
    Context(
        "define-call",
        ("define(", "setdefault(", "getenv(", "putenv(", "set_config(", "setproperty(", "get("),
        r"[ \t]?\\?[\"'][a-z0-9_.-]{0,60}(?:password|passwd|secret|token|_key|_salt|apikey)\\?[\"'],[ \t]{0,3}\\?[\"']([^\"'\n]{6,300})\\?[\"']",
        "mixed",
        "WordPress, Python and Java conventions",
        (
            ("define('DB_PASSWORD', '{}');", "{p}"),
            ("define( 'AUTH_KEY', '{}' );", "{a64}"),
            ('os.environ.setdefault("API_TOKEN", "{}")', "{a32}1"),
        ),
    ),
    Context(
        "sql-identified",
        ("identified ",),
        r"(?:with[ \t]{1,3}\S{1,60}[ \t]{1,3})?by[ \t]{1,3}\\?['\"]([^'\"\n\\]{3,200})\\?['\"]",
        "sql",
        "MySQL manual",
        (("CREATE USER me IDENTIFIED BY '{}';", "{p}"), ("GRANT ALL ON x.* TO 'me'@'%' IDENTIFIED BY '{}'", "{p}")),
    ),
    Context(
        "sql-password",
        ("password ", "password=", "password("),
        r"[ \t(]{0,2}\\?['\"]([^'\"\n\\]{3,200})\\?['\"]",
        "sql",
        "PostgreSQL manual",
        (("ALTER USER me WITH PASSWORD '{}';", "{p}"), ("CREATE ROLE me LOGIN PASSWORD '{}';", "{p}")),
    ),
    Context(
        "quoted-after-password",
        ("password ", "passphrase "),
        r"[ \t]{0,2}\\?['\"]([^'\"\n\s\\]{6,200})\\?['\"]",
        "mixed",
        "Gradle and shell conventions",
        (("    storePassword '{}'", "{p}"), ("mysqladmin -u root password '{}'", "{p}")),
    ),
    Context(
        "crypt-hash",
        ("$1$", "$5$", "$6$", "$y$", "$gy$", "$apr1$", "$2a$", "$2b$", "$2x$", "$2y$", "$argon2i"),
        r"([./a-z0-9$=,+-]{20,300})",
        "any",
        "crypt(5)",
        (("root:$6${}:19000:0:99999:7:::", "{a16}${a86}"), ("me:$2y${}", "10${a53}")),
    ),
    Context(
        "network-device",
        ("password ", "secret ", "community "),
        r"[05789][ \t]{1,2}([^\s\"']{6,100})",
        "mixed",
        "Cisco IOS manual",
        (("username me password 7 {}", "0{H16}1A"), ("enable secret 5 {}", "$1${a4}${a22}")),
    ),
    Context(
        "wifi-key",
        ("psk",),
        r"[ \t]{0,2}[= ][ \t]{0,2}\\?[\"']?([^\s\"'\\]{8,64})",
        "mixed",
        "wpa_supplicant manual",
        (('    psk="{}"', "{p}"),),
        unless_after="[a-z]",
    ),
    Context(
        "json-web-key",
        ('"d"',),
        r"[ \t]{0,2}:[ \t]{0,2}\"([a-z0-9_-]{40,700})\"",
        "random",
        "RFC 7517",
        (('{"kty":"EC","crv":"P-256","d":"{}"}', "{w43}"),),
        "private-key",
    ),
    Context(
        "putty-key",
        ("private-lines:",),
        r"[ \t]{0,3}\d{1,3}\s{1,4}([a-z0-9+/=\s]{20,8000})",
        "any",
        "PuTTY key format",
        (("Private-Lines: 2\n{}\nPrivate-MAC: 00", "{b64}\n{b40}"),),
        "private-key",
    ),
    Context(
        "seed-phrase",
        ("mnemonic", "seed", "recovery"),
        r"(?:[ _-]?(?:phrase|words))?\\?[\"']?[ \t]{0,3}(?:[:=]|is)[ \t]{0,3}\\?[\"']?((?:[a-z]{3,8}[ ]){11,23}[a-z]{3,8})(?![a-z])",
        "words",
        "BIP 39",
        (('MNEMONIC="{}"', "legal winner thank year wave sausage worth useful legal winner thank yellow"),),
        "private-key",
    ),
    Context(
        "aws-credential-pair",
        ("akia", "asia"),
        r"[a-z2-7]{16}[\s,;:|\"']{1,8}([a-z0-9+/]{40})(?![a-z0-9+/=])",
        "random",
        "AWS credential files",
        (("AKIAIOSFODNN7ABCDEFG,{}", "{a38}1a"),),
        "secret",
    ),
    Context(
        "oracle-logon",
        ("jdbc:oracle:thin:", "sqlplus "),
        r"(?:-[a-z]{1,2} )?[a-z0-9_.]{1,60}/\\?[\"']?([^\s@/\"'\\]{3,100})\\?[\"']?@",
        "any",
        "Oracle manual",
        (("jdbc:oracle:thin:scott/{}@//host:1521/x", "{p}"), ("sqlplus -s scott/{}@db", "{p}")),
    ),
    Context(
        "sonar-login",
        ("sonar.login=", "sonar.login "),
        r"[ \t=]{0,3}([a-z0-9_]{40,60})",
        "token",
        "SonarQube documentation",
        (("sonar.login={}", "{h40}"),),
        "secret",
    ),
    Context(
        "app-password",
        ("password", "passwd", "pass", "pwd"),
        r"\\?[\"']?[ \t]{0,2}(?:[:=]|is)[ \t]{0,2}\\?[\"']?([a-z]{4} [a-z]{4} [a-z]{4} [a-z]{4})(?![a-z]| [a-z])",
        "words",
        "Google account help",
        (("smtp password: {}", "xkzq wvbn qprt mnbv"),),
    ),
    Context(
        "wifi-code", (";p:",), r"([^;\s]{4,63});", "any", "WPA3 specification", (("WIFI:T:WPA;S:net;P:{};;", "{p}"),)
    ),
    Context(
        "quoted-pair",
        ("password", "passwd", "passphrase", "secret", "token", "apikey", "api_key", "access_key"),
        r"\\?[\"'],[ \t]{0,2}\\?[\"']([^\"'\n\s\\]{6,200})\\?[\"']",
        "token",
        "how preferences and properties are set in code",
        (('user_pref("signon.password", "{}");', "{a6}!{a6}7"),),
    ),
    Context(
        "here-string",
        ("<<<",),
        r"[ \t]{0,2}\\?[\"']?([^\s\"'\\]{4,200})",
        "piped",
        "Bash manual",
        (("docker login -u me --password-stdin <<< '{}'", "{p}"), ("sudo -S ls <<< {}", "{p}")),
    ),
    Context(
        "login-call",
        (".login(",),
        r"[ \t]?\\?[\"'][^\"'\n]{1,100}\\?[\"'],[ \t]?\\?[\"']([^\"'\n$\\]{4,200})\\?[\"']",
        "mixed",
        "Python's imaplib and smtplib",
        (("imap.login('me', '{}')", "{p}"),),
    ),
    Context(
        "openssl-key",
        ("openssl enc ",),
        rf"(?:[^\n|;&]{{0,200}}? )?-k {_ARGUMENT}",
        "option",
        "OpenSSL manual",
        (("openssl enc -aes-256-cbc -k {} -in x", "{p}"),),
    ),
    # -- prose
    Context(
        "asked-password",
        ("password for ", "passphrase for "),
        r"[a-z0-9_.'@/-]{1,60}: ([^\s\"'`<>\\]{4,100})",
        "mixed",
        "prompts of sudo, ssh and git",
        (("Enter password for root: {}", "{p}"),),
    ),
    Context(
        "account-pair",
        ("credentials", "creds", "login", "log in"),
        r"(?:[ \t](?:is|are|with|as))?[ \t]{0,2}:?[ \t]{1,2}[a-z0-9_.@-]{2,40}[ \t]?[/:][ \t]?([^\s\"'`/,;)(<>\[\]]{5,100})",
        "said",
        "how people write them down",
        (("credentials: admin / {}", "{p}"), ("log in as admin/{} please", "{p}")),
    ),
    Context(
        "said-password",
        ("pass", "pwd", "pw"),
        r"(?:word|wd|phrase|code)?(?:[ \t](?:for|of|on)[ \t][a-z0-9_.'@-]{1,40}(?:[ \t][a-z0-9_.'@-]{1,40}){0,3}?)?[ \t](?:is|was|to)[ \t]{1,2}\\?[\"'`]?([^\s\"'`,;)(<>\[\]\\]{5,100})",
        "said",
        "how people write them down",
        (
            ("my password is {} by the way", "{p}"),
            ("set the password to {}", "{p}"),
            ("the password for the staging db is {}", "{p}"),
        ),
        unless_after="[a-z_-]",
    ),
    Context(
        "said-key",
        ("key ", "token ", "secret "),
        r"(?:for[ \t][a-z0-9_.-]{1,40}[ \t])?(?:is|was)[ \t]{1,2}:?\\?[\"'`]?([a-z0-9_+/=.-]{12,300})",
        "random",
        "how people write them down",
        (("the api key is {}", "{a32}"),),
        "secret",
    ),
    Context(
        "basic-auth-call",
        ("httpbasicauth(", "basicauth(", "basic_auth(", "auth=(", "auth = ("),
        r"[ \t]?\\?[\"'][^\"'\n]{1,100}\\?[\"'],[ \t]?\\?[\"']([^\"'\n$\\]{4,200})\\?[\"']",
        "mixed",
        "Requests documentation",
        (("requests.get(url, auth=('me', '{}'))", "{p}"),),
    ),
)
"""Secrets recognised by their surroundings."""


class Name(NamedTuple):
    """A word in the name of a value. `ending` matches what may follow the word; `kind` is the kind of secret."""

    word: str
    ending: str
    kind: str
    needs: str = ""
    """Pattern that must match the name before the word, in lower case, for the value to be a secret."""


_SUFFIX = r"(?:[_-]?(?:base|value|prod|production|dev|staging|stage|test|live|old|new|main|primary|secondary|raw|plain|text|str|b64|base64|hex|data|v?\d{1,2}))?(?:\.\d{1,2})?\d{0,2}(?![a-z])"

NAMES: tuple[Name, ...] = (
    Name("pass", rf"(?:word|wd|wort|phrase|code)?s?{_SUFFIX}", "password"),
    Name("pwd", _SUFFIX, "password"),
    Name("pw", r"(?![a-z0-9])", "password", r"(?:\A|[_.-])\Z"),
    Name("secret", rf"s?(?:[_-]?(?:key|token|access[_-]?key|id(?=\W{{0,4}}[a-z0-9]{{20}})))?{_SUFFIX}", "secret"),
    Name("token", _SUFFIX, "secret"),
    Name(
        "key",
        _SUFFIX,
        "secret",
        r"(?:api|access|secret|private|priv|preshared|pre[_-]?shared|auth|encrypt(?:ion)?|crypt|cipher|aes|hmac|sign(?:ing)?|account|service|client|master|license|deploy|deployer|"
        r"webhook|app|application|admin|shared|storage|session|subscription|functions?|root|wallet|ssh|tls\.|tls|server|integration|project|write|ingest|validation|decryption|machine|jwt|cookie|"
        r"rest|consumer|user|bot|host|sas|openai|anthropic|stripe|github|gitlab|slack|azure|aws|gcp|google|datadog|sentry|sendgrid|mailgun|twilio|cloudflare|heroku|algolia|redis|db|database|mysql|postgres|x[_-][a-z]{2,20})[_.-]?\Z",
    ),
    Name("credential", r"s?(?![a-z])", "secret"),
    Name("auth", r"(?![a-z])", "secret"),
    Name("salt", r"(?![a-z])", "secret"),
)
"""Words that make the value of a name a secret: `DB_PASSWORD`, `clientSecret`, `api_key`, `tls.key`."""
