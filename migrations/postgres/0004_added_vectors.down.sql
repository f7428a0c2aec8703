DROP FUNCTION vectors_added() CASCADE;
DROP TABLE added_vectors;
