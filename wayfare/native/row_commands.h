/* Command lists over the rows of a batch (wayfare/codegen/runtime/row_commands.py), and sums of rows given by address. */

enum { MOST_WORDS = 256, MOST_BUFFERS = 64, MOST_GATHERED = 64 };

typedef void (*RowFunction)(npy_int64 *);
typedef void (*RunBlocks)(void *, void *, npy_int64, npy_int64);

/* Rows of an input, by address. */
typedef struct { npy_int64 buffer, offset, bytes; char *const *addresses; } Gathered;

/* The rows from `first` on, for one thread. */
typedef struct {
    const npy_int64 *layout, *code;
    char *const *arrays;
    const Gathered *gathered;
    npy_int64 n_gathered, first, rows;
    char *scratch;
} RowPart;

/* The layout: numbers of arrays and of scratch buffers, bytes of scratch, the thread pool's function; strides of
   all; offsets of the scratch buffers. The code: the least number of rows it is for, how many calls; and for each call
   its function, numbers of words and of addresses; the words for the least number of rows; what each grows by with one
   more row; (word, buffer) of each address. */
static void run_part(RowPart *part) {
    const npy_int64 *layout = part->layout, *code = part->code;
    npy_int64 arrays = layout[0], scratch = layout[1], block[MOST_WORDS];
    char *at[MOST_BUFFERS];
    for (npy_int64 i = 0; i < arrays; i++) at[i] = part->arrays[i] + part->first * layout[4 + i];
    for (npy_int64 i = 0; i < scratch; i++) at[arrays + i] = part->scratch + layout[4 + arrays + scratch + i];
    for (npy_int64 k = 0; k < part->n_gathered; k++) {
        const Gathered *own = &part->gathered[k];
        char *const *from = own->addresses + part->first, *to = at[own->buffer] + own->offset;
        npy_int64 step = layout[4 + own->buffer];
        for (npy_int64 i = 0; i < part->rows; i++) {
            if (i + 8 < part->rows) __builtin_prefetch(from[i + 8]);
            memcpy(to + i * step, from[i], own->bytes);
        }
    }
    npy_int64 more = part->rows - code[0], calls = code[1];
    code += 2;
    for (npy_int64 k = 0; k < calls; k++) {
        RowFunction function = (RowFunction)code[0];
        npy_int64 words = code[1], addresses = code[2];
        const npy_int64 *word = code + 3, *step = word + words, *pair = step + words;
        for (npy_int64 i = 0; i < words; i++) block[i] = word[i] + more * step[i];
        for (npy_int64 i = 0; i < addresses; i++) block[pair[2 * i]] += (npy_int64)at[pair[2 * i + 1]];
        function(block);
        code = pair + 2 * addresses;
    }
}

/* run_rows(layout, table, rows, part, how, arrays, gathers, scratch): run a list on all rows, in parts of `part` rows;
   `how`: 0 here, 1 on the threads that are awake, 2 on all threads. */
static PyObject *run_rows(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 8 || !is_int64(args[0]) || !is_int64(args[1]) || !PyTuple_CheckExact(args[5]) || !PyTuple_CheckExact(args[6])
        || !IS_ARRAY(args[7])) { PyErr_SetString(PyExc_TypeError, "run_rows: a list, arrays and rows are wanted"); return NULL; }
    const npy_int64 *layout = PyArray_DATA(ARRAY(args[0])), *table = PyArray_DATA(ARRAY(args[1]));
    npy_int64 rows = PyLong_AsLongLong(args[2]), part = PyLong_AsLongLong(args[3]), how = PyLong_AsLongLong(args[4]);
    Py_ssize_t arrays = PyTuple_GET_SIZE(args[5]), n_gathered = PyTuple_GET_SIZE(args[6]);
    npy_int64 most = PyArray_SIZE(ARRAY(args[1])) - 1, parts = part > 0 ? (rows + part - 1) / part : 0;
    if (PyErr_Occurred()) return NULL;
    npy_int64 room = (how ? parts : 1) * layout[2];
    if (arrays != layout[0] || layout[0] + layout[1] > MOST_BUFFERS || n_gathered > MOST_GATHERED || rows < 1 || part < 1
        || part > most || PyArray_NBYTES(ARRAY(args[7])) < room) { PyErr_SetString(PyExc_ValueError, "run_rows: another layout was planned"); return NULL; }
    char *data[MOST_BUFFERS], *scratch = PyArray_DATA(ARRAY(args[7]));
    Gathered gathered[MOST_GATHERED];
    for (Py_ssize_t i = 0; i < arrays; i++) {
        PyObject *array = PyTuple_GET_ITEM(args[5], i);
        npy_int64 stride = layout[4 + i];
        if (!IS_ARRAY(array) || (stride != 0 && (PyArray_NDIM(ARRAY(array)) == 0 || PyArray_DIM(ARRAY(array), 0) != rows
            || (rows > 1 && PyArray_STRIDE(ARRAY(array), 0) != stride)))) {
            PyErr_Format(PyExc_ValueError, "run_rows: array %zd has another layout than was planned", i);
            return NULL;
        }
        data[i] = PyArray_DATA(ARRAY(array));
    }
    for (Py_ssize_t i = 0; i < n_gathered; i++) {
        PyObject *addresses;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(args[6], i), "LLLO", &gathered[i].buffer, &gathered[i].offset, &gathered[i].bytes, &addresses)) return NULL;
        if (!is_int64(addresses) || PyArray_SIZE(ARRAY(addresses)) != rows || gathered[i].buffer < 0
            || gathered[i].buffer >= layout[0] + layout[1]) { PyErr_SetString(PyExc_ValueError, "run_rows: an address for each row is wanted"); return NULL; }
        gathered[i].addresses = PyArray_DATA(ARRAY(addresses));
    }
    RowPart few[32], *all = parts <= 32 ? few : PyMem_Malloc(parts * sizeof(RowPart));
    if (all == NULL) return PyErr_NoMemory();
    for (npy_int64 i = 0; i < parts; i++) {
        npy_int64 first = i * part, own = rows - first < part ? rows - first : part;
        if (table[own] == 0) {
            if (all != few) PyMem_Free(all);
            PyErr_SetString(PyExc_ValueError, "run_rows: there is no code for this number of rows");
            return NULL;
        }
        all[i] = (RowPart){layout, (const npy_int64 *)table[own], data, gathered, n_gathered, first, own, scratch + (how ? i * layout[2] : 0)};
    }
    if (how == 2) {
        Py_BEGIN_ALLOW_THREADS
        ((RunBlocks)layout[3])(run_part, all, parts, sizeof(RowPart));
        Py_END_ALLOW_THREADS
    } else if (how == 1) ((RunBlocks)layout[3])(run_part, all, parts, -(npy_int64)sizeof(RowPart));
    else for (npy_int64 i = 0; i < parts; i++) run_part(&all[i]);
    if (all != few) PyMem_Free(all);
    Py_RETURN_NONE;
}

/* add_rows(addresses, reached, ids, offsets, values, flags): add each row of `values` to that of an id, `offset` bytes after
   its address, and mark it as reached (if its flag is set). False if that must be done in another way. */
#define ADD_ROWS(T) for (npy_intp i = 0; i < n; i++) { \
        T *to = (T *)(address[id[i]] + (offset == NULL ? 0 : offset[i])); \
        const T *from = (const T *)(given + i * step); \
        for (npy_intp j = 0; j < size; j++) to[j] += from[j]; }

static PyObject *add_rows(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 6 || !is_int64(args[0]) || !is_int64(args[2]) || !IS_ARRAY(args[1]) || !IS_ARRAY(args[4])
        || (args[3] != Py_None && !is_int64(args[3])) || (args[5] != Py_None && !IS_ARRAY(args[5]))) {
        PyErr_SetString(PyExc_TypeError, "add_rows: addresses, flags, ids, offsets, values and flags are wanted");
        return NULL;
    }
    PyArrayObject *values = ARRAY(args[4]), *reached = ARRAY(args[1]), *flags = args[5] == Py_None ? NULL : ARRAY(args[5]);
    npy_intp n = PyArray_SIZE(ARRAY(args[2])), size = 1, rows = PyArray_SIZE(ARRAY(args[0]));
    int type = PyArray_TYPE(values);
    if ((type != NPY_FLOAT32 && type != NPY_FLOAT64) || !PyArray_ISNOTSWAPPED(values) || PyArray_NDIM(values) == 0
        || PyArray_DIM(values, 0) != n || !PyArray_IS_C_CONTIGUOUS(reached) || PyArray_TYPE(reached) != NPY_BOOL
        || PyArray_SIZE(reached) != rows) Py_RETURN_FALSE;
    if (args[3] != Py_None && PyArray_SIZE(ARRAY(args[3])) != n) Py_RETURN_FALSE;
    if (flags != NULL && (PyArray_TYPE(flags) != NPY_BOOL || PyArray_SIZE(flags) != n || !PyArray_IS_C_CONTIGUOUS(flags))) Py_RETURN_FALSE;
    for (int k = PyArray_NDIM(values) - 1; k > 0; k--) {
        if (PyArray_DIM(values, k) != 1 && PyArray_STRIDE(values, k) != size * PyArray_ITEMSIZE(values)) Py_RETURN_FALSE;
        size *= PyArray_DIM(values, k);
    }
    char *const *address = PyArray_DATA(ARRAY(args[0]));
    const npy_int64 *id = PyArray_DATA(ARRAY(args[2])), *offset = args[3] == Py_None ? NULL : PyArray_DATA(ARRAY(args[3]));
    const npy_bool *flag = flags == NULL ? NULL : PyArray_DATA(flags);
    npy_bool *mark = PyArray_DATA(reached);
    for (npy_intp i = 0; i < n; i++) {
        if (id[i] < 0 || id[i] >= rows) { PyErr_SetString(PyExc_IndexError, "add_rows: there is no such row"); return NULL; }
        if (flag == NULL || flag[i]) mark[id[i]] = 1;
    }
    const char *given = PyArray_DATA(values);
    npy_intp step = PyArray_STRIDE(values, 0);
    if (type == NPY_FLOAT32) ADD_ROWS(float) else ADD_ROWS(double)
    Py_RETURN_TRUE;
}

/* how_many(flags): 0 if none of the flags is set, 2 if all are, else 1. */
static PyObject *how_many(PyObject *self, PyObject *flags) {
    if (!IS_ARRAY(flags) || PyArray_TYPE(ARRAY(flags)) != NPY_BOOL || !PyArray_IS_C_CONTIGUOUS(ARRAY(flags))) {
        PyErr_SetString(PyExc_TypeError, "an array of flags is wanted");
        return NULL;
    }
    const npy_bool *flag = PyArray_DATA(ARRAY(flags));
    npy_intp n = PyArray_SIZE(ARRAY(flags)), set = 0;
    for (npy_intp i = 0; i < n; i++) set += flag[i] != 0;
    return PyLong_FromLong(set == 0 ? 0 : set == n ? 2 : 1);
}

/* are_finite(array, flags): whether the rows with a flag are finite; None if that must be found out in another way. A sum of
   x - x is zero if all are finite, else NaN: such a loop is vectorised. */
#define SUM_ROWS(T) for (npy_intp i = 0; i < n; i++) { \
        if (!flag[i]) continue; \
        const T *row = (const T *)(data + i * step); \
        T sum = 0; \
        for (npy_intp j = 0; j < size; j++) sum += row[j] - row[j]; \
        if (sum != 0) Py_RETURN_FALSE; }

static PyObject *are_finite(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2 || !IS_ARRAY(args[0]) || !IS_ARRAY(args[1])) Py_RETURN_NONE;
    PyArrayObject *array = ARRAY(args[0]), *flags = ARRAY(args[1]);
    npy_intp n = PyArray_SIZE(flags), size = 1;
    int type = PyArray_TYPE(array);
    if ((type != NPY_FLOAT32 && type != NPY_FLOAT64) || !PyArray_ISNOTSWAPPED(array) || PyArray_NDIM(array) == 0
        || PyArray_DIM(array, 0) != n || PyArray_TYPE(flags) != NPY_BOOL || !PyArray_IS_C_CONTIGUOUS(flags)) Py_RETURN_NONE;
    for (int k = PyArray_NDIM(array) - 1; k > 0; k--) {
        if (PyArray_DIM(array, k) != 1 && PyArray_STRIDE(array, k) != size * PyArray_ITEMSIZE(array)) Py_RETURN_NONE;
        size *= PyArray_DIM(array, k);
    }
    const npy_bool *flag = PyArray_DATA(flags);
    const char *data = PyArray_DATA(array);
    npy_intp step = PyArray_STRIDE(array, 0);
    if (type == NPY_FLOAT32) SUM_ROWS(float) else SUM_ROWS(double)
    Py_RETURN_TRUE;
}
