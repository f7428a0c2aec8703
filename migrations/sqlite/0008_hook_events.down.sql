DROP TABLE hook_events;
