DROP TABLE injection_outcomes;
DROP TRIGGER sessions_ad_recall_log;
DROP TABLE recall_log;
