-- Without the record of what was recalled: sessions may be told the same again.
DROP TRIGGER sessions_ad_injections;
DROP TABLE injections;
